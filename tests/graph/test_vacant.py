"""A ps without variables that comes back: who declares what."""

import pytest

from ps_train.compat import tf1
from ps_train.vacant import VacantPsWatch

pytestmark = pytest.mark.graph
DECLARED = {"key": "model", "beat": 5, "chief": "c", "ps_runs": {"ps:0": "a", "ps:1": "b"}}


class Monitor:
    """The boards say that the model is `record`, and that these processes of the ps tasks are up."""

    run_id = "c"

    def __init__(self, record, **runs):
        self._record, self._runs, self.published = record, runs, []

    def view(self):
        return self

    def record(self, key):
        return self._record if key == "model" else {}

    def ps_runs(self):
        return {f"ps:{name[-1]}": run for name, run in self._runs.items()}

    def publish(self, key, **fields):
        self.published.append((key, fields))


@pytest.fixture(scope="module")
def graph():
    """With a variable on ps:0, and a probe on ps:1."""
    with tf1.Graph().as_default() as graph:
        with tf1.device("/job:ps/task:0"):
            tf1.get_variable("w", [2])
        with tf1.device("/job:ps/task:1/device:CPU:0"), tf1.name_scope("ps_train/probe"):
            tf1.constant(1.0)
    return graph


def test_a_ps_that_held_nothing_is_declared_anew(graph):
    monitor = Monitor(DECLARED, ps0="a", ps1="new")
    VacantPsWatch(monitor, graph).look()
    assert monitor.published == [("model", {"chief": "c", "ps_runs": {"ps:0": "a", "ps:1": "new"}})]


@pytest.mark.parametrize(
    ("record", "runs"),
    [
        (DECLARED, {"ps0": "a", "ps1": "b"}),
        (DECLARED, {"ps0": "a"}),
        (DECLARED, {"ps0": "new", "ps1": "b"}),
        (DECLARED, {"ps0": "new", "ps1": "new"}),
        ({**DECLARED, "chief": "an earlier one"}, {"ps0": "a", "ps1": "new"}),
        ({}, {"ps0": "a", "ps1": "b"}),
    ],
    ids=[
        "all as they were",
        "one away",
        "one with variables",
        "both",
        "of another chief",
        "before the first",
    ],
)
def test_nothing_else_is_declared(graph, record, runs):
    monitor = Monitor(record, **runs)
    VacantPsWatch(monitor, graph).look()
    assert monitor.published == []
