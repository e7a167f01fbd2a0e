"""Python code in a dataset's functions, for what TensorFlow has no op: run seldom, for many records at once.

    path, kind = call(opened, [number], [tf.string, tf.string], [[], []])

A ModelError that such a function raises ends the task with its text (`explain`). AutoGraph has nothing to convert here.
"""

from ps_train.compat import tf

no_autograph = tf.autograph.experimental.do_not_convert


def call(function, arguments, dtypes, shapes):
    """What `function` returns, as tensors; it gets NumPy values, and bytes for strings.

    Args:
      function: run on the host that runs the dataset.
      arguments: tensors.
      dtypes, shapes: of the results, two lists; or those of the one result.
    """
    values = tf.numpy_function(no_autograph(function), arguments, dtypes)
    if not isinstance(dtypes, list):
        values.set_shape(shapes)
        return values
    for value, shape in zip(values, shapes, strict=True):
        value.set_shape(shape)
    return values
