"""What the tests of graphs have in common: none leaves its task or anything on a server behind."""

import pytest
from in_process import take_servers_back

from ps_train import task_context


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch):
    """This process is no task at first, as a new one is, and lent servers are taken back at the end."""
    monkeypatch.setattr(task_context, "_current", [])
    yield
    take_servers_back()
