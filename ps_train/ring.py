"""The processes that an all-reduce goes on with: which they are, and what was lost first when they end.

A process is known by its run id, which the record of its worker and that of the ps in it have in common.

1. A worker that starts says in its record which process of the chief's it waits for (`awaits`). The chief begins with those that wait
   for it, whose own boards are of the same processes. One that is left of the job before has begun with another chief.
2. From then on `runtime.peers` holds the run ids. A peer is lost when its record says that it has ended, when its board is
   another process's, and, for who cannot make a step any more, when its board does not answer.
3. Who ends for a loss says in its record what was lost (`lost`). A peer that has ended for that is no cause: what it lost is.
"""

import time

from ps_train.errors import PeerLostError
from ps_train.liveness import awake_clock, first_failure

LOSS_SECS = 5.0  # in which a lost worker is noticed by its board, or the others hear why one has ended
NO_WAY_ON = (
    "an all-reduce does not go on without it. Start all tasks again: they go on from the chief's checkpoint"
)


def await_chief(runtime, runs):
    """Tells the chief that this worker, which has not begun, waits for the process that the chief is now.

    Args:
      runtime: session.TaskRuntime.
      runs: name of a ps -> its run id, as the boards have them.
    """
    cluster, monitor = runtime.context.cluster, runtime.monitor
    run = runs.get(str(cluster.server_task(cluster.chief_task)))
    if run is not None and monitor.get("awaits") != run:
        monitor.post(awaits=run)


def not_ready(runtime, runs):
    """The chief: name of each worker that it cannot begin with yet -> its state."""
    view, cluster = runtime.monitor.view(), runtime.context.cluster
    states = {}
    for task in _others(runtime):
        record = view.record(str(task))
        is_of_now = record.get("awaits") == runtime.monitor.run_id
        is_same = record.get("run") == runs.get(str(cluster.server_task(task)))
        if not (record.get("state") == "starting" and is_of_now and is_same):
            states[str(task)] = record.get("state", "not heard of")
    return states


def find_loss(runtime, view, is_stuck=False):
    """Why this worker cannot go on with its peers, as an error, or None.

    Args:
      runtime: session.TaskRuntime, with `peers`.
      view: the monitor's.
      is_stuck: its session is lost, so that a board without an answer is, too.
    """
    records = {}  # of the processes that this one began with
    for task in _others(runtime):
        record = view.record(str(task))
        if record.get("run") == runtime.peers[str(runtime.context.cluster.server_task(task))]:
            records[str(task)] = record
    refused = [record for record in records.values() if record.get("is_refused")]
    if refused:
        return _refusal(refused[0])
    found = _lost(runtime, records, is_stuck)
    if not found:
        return None
    told = {name: records[name].get("lost", {}) for name in found if name in records}
    return loss_of(runtime, _first(found, told, str(runtime.context.task)), sorted(found))


def await_loss(runtime, clock=awake_clock, sleep=time.sleep):
    """For a worker whose session is lost: what the boards say of the reason within LOSS_SECS, as an error; None: nothing.

    Without a word, too, if a signal or the guard ends the wait; `runtime.guard` has the reason then.
    """
    deadline = clock() + LOSS_SECS
    while not runtime.guard.should_stop:
        if find_loss(runtime, runtime.monitor.view(), is_stuck=True) is not None:
            runtime.monitor.flush()  # the first that is noticed need not be the first that was lost
            view = runtime.monitor.view()
            failure = first_failure(view.records, own=str(runtime.context.task))
            error = failure or find_loss(runtime, view, is_stuck=True)
            if error is not None:
                return error
        if clock() > deadline:
            break
        sleep(0.1)
    return None


def loss_of(runtime, causes, names=()):
    """The error of a loss.

    Args:
      runtime: session.TaskRuntime.
      causes: name of a worker that was lost by itself -> how.
      names: those that have ended, some of them only for that.
    """
    cluster = runtime.context.cluster
    addresses = {str(task): cluster.address(task) for task in cluster.training_tasks}
    named = [f"{name} at {addresses[name]} ({why})" for name, why in causes.items()]
    named += [f"{name} (ended for that)" for name in names if name not in causes]
    return PeerLostError(
        f"lost: {', '.join(named) or 'a worker'}; {NO_WAY_ON}", is_model_safe=True, lost=causes
    )


def _others(runtime):
    return [task for task in runtime.context.cluster.training_tasks if task != runtime.context.task]


def _lost(runtime, records, is_stuck):
    """Name of each peer that is gone -> how that shows."""
    found = {}
    for task in _others(runtime):
        name, ps = str(task), runtime.context.cluster.server_task(task)
        link, record = runtime.monitor.link(ps), records.get(name, {})
        # None on the board of a new process, until that has introduced itself.
        run = link.read()[0].get(str(ps), {}).get("run")
        if record.get("state") in ("failed", "stopped"):
            found[name] = record.get("reason", "has ended").replace(f"; {NO_WAY_ON}", "")
        elif run != runtime.peers[str(ps)]:
            found[name] = "was started again"
        elif is_stuck and link.reason:
            found[name] = link.reason
    return found


def _first(found, told, own):
    """Of what was found to be lost, what was lost by itself: what the others have lost that ended for a loss.

    Args:
      found: name -> how it was lost.
      told: name of one that has ended -> what it has lost, by name; its own loss, or that of this very worker, `own`, explains nothing.
    """
    causes, todo, seen = {}, list(found.items()), {own}
    while todo:
        name, how = todo.pop(0)
        theirs = {other: why for other, why in told.get(name, {}).items() if other not in (name, own)}
        if name not in seen and theirs:
            todo += theirs.items()
        elif name not in seen:
            causes[name] = how
        seen.add(name)
    return causes or found


def _refusal(record):
    reason = record.get("reason", "").partition("\n")[2] or "it says why"
    return PeerLostError(
        f"{record['key']} was refused, and an all-reduce does not go on without it: {reason.splitlines()[0]} Start all tasks again "
        "then.",
        is_model_safe=True,
    )
