"""The failure matrix of the README: with PS_TRAIN_MATRIX=1 all of it, else the cells that no other test comes near to."""

import os

import pytest
from faults import CELLS, Cell, run_cell

pytestmark = pytest.mark.cluster
USUAL = {
    Cell("ps", "kill_restart", "async"),
    Cell("ps", "kill_restart", "sync"),
    Cell("ps", "kill", "async"),
    Cell("ps", "stop_past_bound", "sync"),
    Cell("ps", "stop_cont", "async"),
    Cell("chief", "stop_cont", "sync"),
    Cell("chief", "kill_restart", "backup"),
    Cell("worker", "stop_past_bound", "sync"),
    Cell("worker", "stop_past_bound", "async"),
    Cell("worker", "stop_cont", "sync"),
    Cell("worker", "kill", "backup"),
}


CHOSEN = [cell for cell in CELLS if cell in USUAL or os.environ.get("PS_TRAIN_MATRIX")]


@pytest.mark.parametrize("cell", CHOSEN, ids=str)
def test_cell(make_job, cell):
    print(cell, run_cell(make_job, cell))
