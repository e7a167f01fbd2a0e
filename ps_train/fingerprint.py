"""What a task's model and update rule are, in a form that two tasks can compare before the first step.

    text = describe(variables, context)        # the chief writes it on a board
    differences(mine, theirs, "worker:1")      # [] or lines for people

Every worker builds its own graph, and nothing in TensorFlow notices when two build different ones: a variable of another
shape or on another ps is silently another variable.
"""

import hashlib
import json

from ps_train.compat import tf

MAX_NAMED = 5


def describe(variables, context, layout=None, constants=None):
    """A JSON text of the update rule and of each variable's type, shape and ps.

    Args:
      variables: the graph's global variables.
      context: TaskContext.
      layout: text that tells how variables are put together on the ps; see `fusing`.
      constants: name -> number, of what an update depends on, where each worker makes all updates; see `allreduce.rule_of`.
    """
    rule = context.update
    if rule == "sync":
        rule = f"sync with {context.quorum} of {context.cluster.num_workers} gradients"
    described = {v.op.name: _describe_one(v, context) for v in variables}
    digest = hashlib.sha256(layout.encode()).hexdigest()[:16] if layout else None
    flags = {
        "--input": context.input,
        "--local_steps": context.local_steps,
        "--partition": context.partition,
        "--first_ps_bytes": context.first_ps_bytes,
        "--record": context.record is not None,
    }
    return json.dumps(
        {"rule": rule, "flags": flags, "variables": described, "layout": digest, "constants": constants or {}}
    )


def _describe_one(variable, context):
    device = tf.DeviceSpec.from_string(variable.device)
    where = f"{device.job}:{device.task or 0}" if device.job else "no task"
    where = "each worker" if context.is_all_reduced else where
    shape = "any shape" if variable.shape.rank is None else str(variable.shape.as_list())
    return f"{variable.dtype.base_dtype.name} {shape} on {where}"


def differences(mine, theirs, task):
    """Lines on what differs between `task`'s text of `describe` and the others'; variables that only they have do no harm."""
    mine, theirs = json.loads(mine), json.loads(theirs)
    if mine["rule"] != theirs["rule"]:
        return [f"The updates are {mine['rule']} for {task} and {theirs['rule']} for the others."]
    flags = [flag for flag, value in mine["flags"].items() if value != theirs["flags"][flag]]
    lines = [
        f"{task} has {flag}={mine['flags'][flag]} and the others have {flag}={theirs['flags'][flag]}. Give all the same."
        for flag in flags
    ]
    if flags:  # from which the rest follows
        return lines
    if mine["layout"] != theirs["layout"]:
        lines.append(
            f"{task} updates other variables together than the others do. Give all the same --fuse_bytes, "
            "--pack_bytes and --bucket_bytes."
        )
    other = []
    for name, here in mine["variables"].items():
        there = theirs["variables"].get(name)
        if there is None:
            other.append(f"Variable {name} ({here}) is {task}'s alone.")
        elif there != here:
            other.append(f"Variable {name} is {here} for {task} and {there} for the others.")
    if not other:
        others = theirs["constants"]
        other = [
            f"{name} is {value:.9g} for {task} and {others[name]:.9g} for the others."
            for name, value in mine["constants"].items()
            if name in others and others[name] != value
        ]
    more = [f"{len(other) - MAX_NAMED} more differ."] if len(other) > MAX_NAMED else []
    return [*lines, *other[:MAX_NAMED], *more]
