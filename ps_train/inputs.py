"""The input side of a graph: the user's dataset, its iterator, and when it starts.

    dataset, (features, labels) = build_input(model, context, "/job:worker/task:1/device:CPU:0")
    start = build_input_init()         # run after tables_initializer: the dataset's functions may look things up

The input lives on one task, starts from its first element with every new session, and ends with OutOfRangeError.
"""

from ps_train.compat import tf, tf1
from ps_train.model import call_input_fn, split_element

ITERATORS = "ps_train/iterators"


def build_input(model, context, device):
    """Builds the input of one task.

    Args:
      model: the user's Model.
      context: InputContext.
      device: where it runs.

    Returns:
      (dataset, (features, labels)): the dataset and the tensors of its next element.
    """
    with tf1.device(device):
        dataset = call_input_fn(model, context)
        iterator = tf1.data.make_initializable_iterator(dataset)
        tf1.add_to_collection(ITERATORS, iterator.initializer)
        return dataset, split_element(iterator.get_next())


def build_input_init():
    """The op that starts the input from its first element; run it after the tables that the input may use."""
    return tf.group(*tf1.get_collection(ITERATORS), name="input_init")


def count_examples(features, batch_size):
    """int32 scalar: the first dimension of the features, or `batch_size` if they have none."""
    for tensor in tf.nest.flatten(features, expand_composites=True):
        if tensor.shape.rank is None or tensor.shape.rank > 0:
            return tf.shape(tensor)[0]
    return tf.constant(batch_size)
