"""Restores a checkpoint that fits the model, and refuses one that does not.

    restore(session, saver, "runs/1/model.ckpt-200")

TensorFlow's restore does not compare shapes: a resource variable takes whatever the checkpoint has under its name, and
the mistake shows later, as wrong numbers or as an error of some other op. So names, shapes and types are compared first,
with the checkpoint's index alone.
"""

from ps_train.compat import tf, tf1
from ps_train.errors import ModelError
from ps_train.explain import cause

MAX_NAMED = 5
DEFAULT_MODEL = (
    "ps_train/default_model"  # collection: not empty if the graph's model is there for want of another
)


def restore(session, saver, checkpoint, is_whole=True, apart=()):
    """Restores the variables of the session's graph.

    Args:
      session: `tf1.Session`.
      saver: `tf1.train.Saver`.
      checkpoint: path prefix.
      is_whole: the saver covers all global variables under their own names; one of the user's may not.
      apart: names of variables that the saver does not restore.

    Returns:
      `tf.train.load_checkpoint`'s reader.

    Raises:
      ModelError: the checkpoint does not fit the model, or cannot be read.
    """
    try:
        reader = tf.train.load_checkpoint(checkpoint)
    except (tf.errors.OpError, ValueError) as error:
        raise ModelError(_unreadable(checkpoint, error)) from None
    if is_whole:
        variables = session.graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
        variables = [variable for variable in variables if variable.op.name not in apart]
        problems = differences(reader, variables)
        if problems:
            hint = _lacks_slots_alone(reader, variables)
            if session.graph.get_collection(DEFAULT_MODEL):
                hint = " No --model is given, so this is the built-in model." + hint
            raise ModelError(_misfit(checkpoint, problems, hint))
    try:
        saver.restore(session, checkpoint)
    except (
        tf.errors.DataLossError,
        tf.errors.OutOfRangeError,
    ) as error:  # the data file is damaged or cut off
        raise ModelError(_unreadable(checkpoint, error)) from None
    except (tf.errors.NotFoundError, tf.errors.InvalidArgumentError, ValueError) as error:
        raise ModelError(f"{checkpoint} cannot be restored: {first_line(error)}") from None
    return reader


def differences(reader, variables):
    """What a checkpoint lacks of the variables, or holds in another shape or type: sorted lines, trainable ones first.

    Args:
      reader: `tf.train.load_checkpoint`'s.
      variables: global variables; parts of a partitioned one are looked up as the whole.
    """
    shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    problems = {}
    for variable in variables:
        part = variable._get_save_slice_info()
        name = part.full_name if part else variable.op.name
        shape = tf.TensorShape(part.full_shape if part else variable.shape)
        if name not in shapes:
            text = f"{name} is not in it"
        elif not shape.is_compatible_with(shapes[name]):
            text = f"{name} has shape {list(shapes[name])} there and {_as_text(shape)} in the model"
        elif types[name] != variable.dtype.base_dtype:
            text = f"{name} is {types[name].name} there and {variable.dtype.base_dtype.name} in the model"
        else:
            continue
        problems[text] = not variable.trainable
    return sorted(problems, key=lambda text: (problems[text], text))


def first_line(error):
    """The first line of an error's message, below a stack of TensorFlow's if there is one."""
    if isinstance(error, tf.errors.OpError):
        return cause(error) or repr(error)
    return str(error).strip().partition("\n")[0] or repr(error)


def _as_text(shape):
    return "any" if shape.rank is None else str(shape.as_list())


def _lacks_slots_alone(reader, variables):
    """What to do, in words, if all that is missing may be what a job with --local_steps has on its workers, else ""."""
    missing = [v for v in variables if differences(reader, [v])]
    if any(v.trainable or reader.has_tensor(v.op.name) for v in missing):
        return ""
    return " If it is of a job with --local_steps, whose workers keep what the optimizer remembers: go on with --local_steps."


def _misfit(checkpoint, problems, hint):
    more = f" and {len(problems) - MAX_NAMED} more" if len(problems) > MAX_NAMED else ""
    return (
        f"{checkpoint} does not fit the model: {'; '.join(problems[:MAX_NAMED])}{more}. Use another --train_dir, or "
        f"the model and --model_params that wrote it.{hint}"
    )


def _unreadable(checkpoint, error):
    return f"{checkpoint} cannot be read: {first_line(error)}. Move it away to start from an older one."


def tell_tables_apart():
    """Gives mutable tables of one name in the graph's checkpoints names of their own; call it before making a Saver.

    TensorFlow names a table without a name by its class, and the second one's content replaces the first one's. The first
    keeps its name; another takes that of its op, which is unique.
    """
    known = set()
    for saveable in tf1.get_collection(tf1.GraphKeys.SAVEABLE_OBJECTS):
        handle = getattr(saveable.op, "resource_handle", None)
        old = saveable.name
        if old in known and handle is not None:
            own = saveable.name = saveable.table_name = handle.op.name
            for spec in saveable.specs:
                spec.name = own + spec.name.removeprefix(old)
        known.add(saveable.name)
