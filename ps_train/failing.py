"""Sees to it that a step which fails on its worker ends: each ps that waits for another one waits for the worker, too.

    fail_together(graph, [step, loss], context.worker_device)

When a part of a step fails, as by NaN or the end of the data, TensorFlow's master cancels the parts on the other tasks and waits
for their ends. Two of its ways to be told cross: a part that has just got to its task, and has not begun, does not hear of it
(`CallOptions::StartCancel` keeps nothing for whoever registers later), and begins. It ends by what it receives: from the worker,
whose part has failed, the error. From a ps whose part was cancelled before it began, nothing ever comes, and the step never ends.
So it is with a global step on a ps without gradients, which waits for the update on another ps: with two of them, a small model
whose steps failed hung after 14 to 40 failures.

A ps that has received something of the worker's in this step has begun, and hears of the cancelling. What is added is an op with a
state, as TensorFlow takes others out of the graph again, and control edges that others imply.
"""

from typing import Any

from ps_train.compat import tf, tf1
from ps_train.transport import ancestors, predecessors, task_of


def fail_together(graph, fetches, worker_device):
    """Adds a control edge from the worker to each ps that gets nothing from it, and waits for another ps.

    Args:
      graph: not finalized.
      fetches: ops and tensors of a step.
      worker_device: device string of the worker, or of the ps that its server is.
    """
    own = task_of(worker_device)
    waiting: dict[str, Any] = {}
    told = set()
    for op in ancestors(fetches):
        task = task_of(op.device)
        if task in ("", own):
            continue
        for other in predecessors(op):
            source = task_of(other.device)
            if source == own and other.type != "Const":  # which may be copied to the ps
                told.add(task)
            elif source not in ("", own, task):
                waiting.setdefault(task, op)
    untold = [op for task, op in waiting.items() if task not in told]
    if untold:
        with graph.as_default(), tf1.control_dependencies(None), tf1.device(f"{own}/device:CPU:0"):
            begun = tf.timestamp("ps_train/begun").op
        for op in untold:
            op._add_control_input(begun)
