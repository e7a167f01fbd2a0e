"""How the reason of a task points to the one that failed first."""

import pytest

from ps_train.errors import blame, blamed


@pytest.mark.parametrize("name", ["ps:0", "worker:12", "chief:0"])
def test_who_is_blamed_can_be_read_back(name):
    assert blamed(blame(name, "no attribute")) == name
    assert blamed(blame(name, blame("ps:1", "x"))) == name


@pytest.mark.parametrize("reason", ["", "worker:1 failed", "Job worker:1 failed: x", "evaluator:0 failed: x"])
def test_any_other_reason_blames_nobody(reason):
    assert blamed(reason) is None
