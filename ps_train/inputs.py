"""The input side of a graph: the user's dataset, its iterator, and when it starts.

    dataset, (features, labels) = build_input(model, context, "/job:worker/task:1/device:CPU:0")
    start = build_input_init()         # run after tables_initializer: the dataset's functions may look things up

The input lives on one task, starts from its first element with every run of this op, and ends with OutOfRangeError.

An iterator with a name (`shared_name`) is the same in all sessions on its graph and outlives them. Its dataset has no tuning thread
of tf.data's, if the user's options do not ask for one: whoever deletes an iterator waits for that thread, which at times misses that
it is cancelled and sleeps on for as long as its period is, up to a minute (TensorFlow 2.21, `Model::OptimizeLoop`). A session that is
closed deletes one without a name under locks of its server, which then answers nobody; that is fatal where a worker's process is
a ps, too, and where it is, the iterator has a name.
"""

import warnings

from ps_train.compat import tf, tf1
from ps_train.model import call_input_fn, split_element

ITERATORS = "ps_train/iterators"
DATASETS = "ps_train/datasets"
HAS_DATA = "ps_train/has_data"


def build_input(model, context, device, shared_name=None, goes_on=False, follow=None):
    """Builds the input of one task.

    Args:
      model: the user's Model.
      context: InputContext.
      device: where it runs.
      shared_name: of the iterator, on the device's task; None: each session has its own.
      goes_on: whether the first element comes again and again after the last; a bool scalar in HAS_DATA tells of each
        whether it is one of the data.
      follow: function of the user's dataset: the one to read in its place, of the same elements.

    Returns:
      (dataset, (features, labels)): the dataset and the tensors of its next element.
    """
    with tf1.device(device):
        dataset = call_input_fn(model, context)
        tf1.add_to_collection(DATASETS, dataset)
        iterated = dataset if follow is None else follow(dataset)
        iterated = _going_on(iterated) if goes_on else iterated
        iterated = iterated if shared_name is None else _without_tuning(iterated)
        iterator = tf1.data.make_initializable_iterator(iterated, shared_name)
        tf1.add_to_collection(ITERATORS, iterator.initializer)
        # An error of this op at run time is blamed on the op that it stems from: the dataset, made at a line of the user's.
        with tf1.get_default_graph()._original_op(dataset._variant_tensor.op):
            element = iterator.get_next()
        if goes_on:
            element, has_data = element
            tf1.add_to_collection(HAS_DATA, has_data)
        return dataset, split_element(element)


def _going_on(dataset):
    def marked(has_data):
        return lambda *parts: (parts if isinstance(dataset.element_spec, tuple) else parts[0], has_data)

    again = dataset.take(1).cache().repeat()
    return dataset.map(marked(True)).concatenate(again.map(marked(False)))


def _without_tuning(dataset):
    """Parallel calls and buffers of AUTOTUNE keep the sizes that they begin with, which suit the host's processors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a graph's options are those which its own functions gave
        is_chosen = dataset.options().autotune.enabled is not None
    if is_chosen:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def build_input_init():
    """The op that starts the input from its first element; run it after the tables that the input may use."""
    return tf.group(*tf1.get_collection(ITERATORS), name="input_init")


def find_op(graph, name, function=None):
    """An op of a function of the input, such as that of `map`; None if there is none of that name, or several.

    Args:
      graph: in which `build_input` was called.
      name: the op's in its function.
      function: of a branch or loop within that function, if the op is there: what is found is the op that runs it.
    """
    if function is None:
        found = [op for op in _ops_of_functions(graph) if op.name == name]
    else:
        callers = [
            op for op in _ops_of_functions(graph) if op.type.removeprefix("Stateless") in ("If", "While")
        ]
        found = [op for op in callers if function.startswith(op.name.replace("/", "_") + "_")]
    return found[0] if len(found) == 1 else None


def _ops_of_functions(graph):
    datasets = list(graph.get_collection(DATASETS))
    while datasets:
        dataset = datasets.pop()
        datasets += dataset._inputs()
        for wrapper in dataset._functions():
            yield from wrapper.function.graph.get_operations()


def count_examples(features, batch_size):
    """int32 scalar: how many rows the first of the features has, or `batch_size` if none has rows."""
    for value in tf.nest.flatten(features):
        if isinstance(value, tf.SparseTensor):
            return tf.cast(value.dense_shape[0], tf.int32)
        if isinstance(value, tf.RaggedTensor):
            return _shape_at_run_time(value.row_splits)[0] - 1
        if value.shape.rank is None:  # it may turn out to be a scalar
            return tf.concat([_shape_at_run_time(value), [batch_size]], 0)[0]
        if value.shape.rank > 0:
            return _shape_at_run_time(value)[0]
    return tf.constant(batch_size)


def _shape_at_run_time(tensor):
    """int32 vector, by a way on which nothing can be inferred.

    TensorFlow infers from the model's `tf.reshape(features, [32, 64])` that there are 32 rows, and puts the constant in
    the place of `tf.shape(features)`, also for the last batch of 16 (as it takes the reshape itself away).
    """
    with tf1.device(tensor.device):
        wrapped = tf.raw_ops.OptionalFromValue(components=[tensor])
        (value,) = tf.raw_ops.OptionalGetValue(
            optional=wrapped, output_types=[tensor.dtype], output_shapes=[None]
        )
        return tf.shape(value)
