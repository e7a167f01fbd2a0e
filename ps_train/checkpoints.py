"""What a train_dir holds, read without TensorFlow: the newest checkpoint and its step.

latest_checkpoint("runs/1")                # "runs/1/model.ckpt-200" or None
checkpoint_step("runs/1/model.ckpt-200")   # 200
"""

import contextlib
import os
import re

LAST_MARK = "last_checkpoint"


def latest_checkpoint(train_dir):
    """Path prefix of the newest complete checkpoint, or None; needs no TensorFlow and no glob of the directory's name.

    TensorFlow's `latest_checkpoint` takes the name for a pattern and finds nothing in a directory such as `run[1]`.
    """
    found = _listed(train_dir, "model_checkpoint_path")
    return found[0] if found else None


def all_checkpoints(train_dir):
    """Path prefixes of the complete checkpoints that the state file lists, oldest first."""
    return _listed(train_dir, "all_model_checkpoint_paths")


def _listed(train_dir, key):
    """What the state file `checkpoint` says under `key`, as paths in `train_dir`, wherever that was when it was written."""
    if not train_dir:
        return []
    try:
        with open(os.path.join(train_dir, "checkpoint"), encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return []
    found = re.findall(rf'^{key}: "(.*)"$', text, re.MULTILINE)
    paths = [os.path.join(train_dir, os.path.basename(_unescaped(name))) for name in found]
    return [path for path in paths if os.path.exists(path + ".index")]


def checkpoints_up_to_newest(train_dir):
    """Path prefixes of all checkpoints whose files are there, by their steps, up to the newest one's.

    The state file does not list them all: with `max_to_keep=0` TensorFlow's Saver notes the newest alone.
    """
    newest = checkpoint_step(latest_checkpoint(train_dir))
    if newest is None:
        return []
    found = (re.fullmatch(r"model\.ckpt-(\d+)\.index", name) for name in os.listdir(train_dir))
    steps = sorted(int(match[1]) for match in found if match)
    return [os.path.join(train_dir, f"model.ckpt-{step}") for step in steps if step <= newest]


def remove_all_but_newest(train_dir):
    """Removes the checkpoints of a job that is over, but for its newest."""
    for path in checkpoints_up_to_newest(train_dir)[:-1]:
        for suffix in (".index", ".meta", ".data-00000-of-00001"):
            with contextlib.suppress(OSError):
                os.remove(path + suffix)


def remove_interrupted(train_dir):
    """Removes the files of saves that were cut off, as by SIGKILL, which no later save would; how many they were.

    Only for who has the directory for itself: a save that is going on has such files, too.
    """
    names = [
        name for name in os.listdir(train_dir) if re.fullmatch(r"model\.ckpt-\d+\..+\.tempstate\d+", name)
    ]
    for name in names:
        with contextlib.suppress(OSError):
            os.remove(os.path.join(train_dir, name))
    return len(names)


def _unescaped(text):
    """A string of protobuf's text format, whose bytes above 127 are octal escapes of UTF-8."""
    raw = text.encode("latin-1", "backslashreplace").decode("unicode_escape").encode("latin-1", "ignore")
    return raw.decode("utf-8", "replace")


def checkpoint_step(checkpoint):
    """Global step in a checkpoint's name, or None."""
    match = re.search(r"-(\d+)$", checkpoint or "")
    return int(match[1]) if match else None


def finished_at(train_dir, train_steps):
    """The newest checkpoint if it has reached `train_steps`, else None: the job is done, nothing is left to do."""
    checkpoint = latest_checkpoint(train_dir)
    if not checkpoint or train_steps is None or (checkpoint_step(checkpoint) or 0) < train_steps:
        return None
    return checkpoint


def mark_last(checkpoint):
    """Notes beside a checkpoint that the job ended with it: no later one will come. For the evaluator."""
    if checkpoint:
        with open(os.path.join(os.path.dirname(checkpoint), LAST_MARK), "w", encoding="utf-8") as file:
            file.write(os.path.basename(checkpoint) + "\n")


def unmark_last(train_dir):
    """Takes the mark away: a job goes on, and later checkpoints will come."""
    if train_dir:
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(train_dir, LAST_MARK))


def is_marked_last(checkpoint):
    """Whether the job that wrote this checkpoint said that it is its last."""
    if not checkpoint:
        return False
    try:
        with open(os.path.join(os.path.dirname(checkpoint), LAST_MARK), encoding="utf-8") as file:
            return file.read().strip() == os.path.basename(checkpoint)
    except OSError:
        return False


def ended_since(train_dir, moment):
    """Whether a job marked its last checkpoint there after `moment` (seconds since 1970)."""
    if not train_dir:
        return False
    with contextlib.suppress(OSError):
        return os.path.getmtime(os.path.join(train_dir, LAST_MARK)) > moment
    return False


def is_last(checkpoint, train_steps):
    """Whether no later checkpoint will come: it has reached the target, or is marked as the last."""
    has_reached = train_steps is not None and (checkpoint_step(checkpoint) or 0) >= train_steps
    return has_reached or is_marked_last(checkpoint)
