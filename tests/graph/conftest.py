"""What the tests of graphs have in common: none leaves its task, its graph or anything on a server behind."""

import pytest
from in_process import take_servers_back

from ps_train import task_context
from ps_train.compat import tf1


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch):
    """This process is no task at first and its default graph is empty, as a new one's, and lent servers are taken back."""
    monkeypatch.setattr(task_context, "_current", [])
    tf1.reset_default_graph()
    yield
    take_servers_back()
