"""What all tests have in common."""

import pytest

from ps_train.logs import log


@pytest.fixture(autouse=True)
def log_writer():
    """A test that starts the log writer leaves none behind: caplog would get each record of a later test twice."""
    before = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.level, log.propagate = before
