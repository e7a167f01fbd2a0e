"""Who is admitted to a ps's board: by its records, with the clock in the test's hand."""

import pytest
from fakes import Clock

from ps_train.admission import Admission
from ps_train.cluster import Cluster, TaskId

pytestmark = pytest.mark.graph

CLUSTER = Cluster.from_hosts(ps="p0:1", worker="w0:1,w1:1")


def own_record(**fields):
    return {
        "key": "worker:1",
        "run": "mine",
        "beat": 1,
        "started": 50.0,
        "version": "1",
        "protocol": 1,
        **fields,
    }


def ps_record(cluster=CLUSTER, **fields):
    return {"key": "ps:0", "beat": 1, "run": "p", "cluster": cluster.as_dict(), "protocol": 1, **fields}


def other_record(number, **fields):
    other = {"run": "other", "pid": 77, "host": "h2", "started": 60.0, "state": "training"}
    return {"key": "worker:1", "beat": number, **other, **fields}


def make(clock=None):
    return Admission(TaskId("ps", 0), "p0:1", clock or Clock())


def judge(*boards, own=None, first=None):
    """An Admission after it has seen each of the boards in turn, a second apart."""
    clock = Clock()
    admission = make(clock)
    for records in boards:
        admission.judge(own or own_record(), CLUSTER, {r["key"]: r for r in records}, first)
        clock.now += 1.0
    return admission


def test_a_task_is_admitted_where_nobody_has_its_name():
    admission = judge([ps_record()])
    assert admission.is_granted and admission.refusal is None
    assert not judge([]).is_granted, "a ps that has not introduced itself"


def test_a_task_of_another_cluster_is_refused():
    other = Cluster.from_hosts(ps="p0:1", worker="w0:1,w2:1")
    admission = judge([ps_record(other)])
    assert not admission.is_granted and admission.refusal.is_stranger and admission.refusal.exit_status == 1
    assert "worker' differs: w0:1,w1:1 here, w0:1,w2:1 there" in str(admission.refusal)


def test_a_ps_of_another_version_that_speaks_otherwise_is_refused():
    admission = judge([ps_record(version="9.9", protocol=2)])
    assert not admission.is_granted
    assert "ps:0 at p0:1 runs ps_train 9.9, this task 1, and they do not" in str(admission.refusal)


def test_a_living_task_of_the_same_name_is_left_alone():
    admission = judge([ps_record(), other_record(5)], [ps_record(), other_record(6)])
    assert not admission.is_granted
    assert str(admission.refusal).startswith(
        "Another process is running as worker:1: process 77 on h2. End one of the two"
    )
    assert admission.refusal.exit_status == 138 and admission.refusal.is_stranger


def test_a_dead_task_s_name_is_taken_over():
    dead = [ps_record(), other_record(5)]
    assert not judge(dead, dead).is_granted, "it may be between two beats"
    assert judge(dead, dead, dead).is_granted
    assert judge([ps_record(), other_record(5, state="failed")]).is_granted


def test_the_one_that_is_at_the_address_is_admitted_beside_one_that_is_not():
    other = other_record(5, is_at_address=False)
    assert judge([ps_record(), other], own=own_record(is_at_address=True)).is_granted


@pytest.mark.parametrize("is_first_granted", [True, False])
def test_who_is_admitted_is_decided_on_the_first_board(is_first_granted):
    """Of two that come at once, each may be the first on another board: both would go."""
    first = make()
    first.is_granted = is_first_granted
    admission = judge(*[[ps_record(), other_record(number)] for number in range(3)], first=first)
    assert admission.is_granted == is_first_granted and admission.refusal is None


@pytest.mark.parametrize(("started", "gives_way"), [(59.0, True), (61.0, False)])
def test_of_two_that_write_under_one_name_the_earlier_gives_way(started, gives_way):
    """As when both were started at the same moment, or one was frozen and its place taken."""
    admission = make()
    for number in range(4):
        admission.note_replaced(own_record(started=started), {"worker:1": other_record(number)})
    assert (admission.refusal is not None) == gives_way


@pytest.mark.parametrize(("own", "other", "gives_way"), [(False, True, True), (True, False, False)])
def test_the_one_that_is_not_at_the_address_gives_way(own, other, gives_way):
    """The ps tasks cannot reach it, whoever was first."""
    admission = make()
    record = own_record(started=61.0 if gives_way else 59.0, is_at_address=own)
    for number in range(4):
        admission.note_replaced(record, {"worker:1": other_record(number, is_at_address=other)})
    assert (admission.refusal is not None) == gives_way


def test_what_a_dead_predecessor_left_is_no_clash():
    admission = make()
    own = [{"worker:1": own_record(beat=number)} for number in range(5)]
    for replaced in ({}, {"worker:1": other_record(3)}, *own):
        admission.note_replaced(own_record(), replaced)
    assert admission.refusal is None
