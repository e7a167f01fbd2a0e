"""A directory with a folder of images for each class, as batches.

train/cat/1.png  train/cat/2.jpg  train/dog/a/7.png     # labels 0, 0, 1: by the folders' sorted names

data = from_image_folder(context, "train", image_size=(64, 64), validation_split=0.2)
names = class_names("train")                            # ['cat', 'dog']
"""

import hashlib
import os

import numpy as np

from ps_train.compat import tf
from ps_train.data.broken import Broken
from ps_train.data.calls import call, no_autograph
from ps_train.data.order import Order
from ps_train.data.sharding import share_rows
from ps_train.errors import ModelError
from ps_train.model.spec import ModeKeys
from ps_train.wording import shown

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")
CHUNK = 64  # paths that are looked up together
CYCLE = 16  # images that are read at the same time


def from_image_folder(
    context,
    directory,
    image_size=(224, 224),
    *,
    dtype="float32",
    validation_split=0.0,
    background=255,
    shard_by="image",
    shuffle_buffer=1,
    repeat=True,
    on_broken="fail",
):
    """A dataset of (images `[batch, height, width, 3]`, labels int64 `[batch]`).

    >>> from_image_folder(ps_train.InputContext(), "nowhere")
    Traceback (most recent call last):
    ps_train.errors.ModelError: Image directory nowhere does not exist. Expected is a directory with a folder for each class. ...

    Labels are the positions of the folders' names in sorted order, as of Keras' `image_dataset_from_directory`. PNG, JPEG, BMP
    and GIF (the first frame) are read, grey ones as RGB; what is transparent shows the background.

    Args:
      context: what `input_fn` gets.
      directory: has a folder for each class, in which images lie at any depth.
      image_size: (height, width) in pixels, to which all are scaled.
      dtype: 'float32' (0 to 1) or 'uint8' (0 to 255).
      validation_split: the share of images that modes other than "train" get, and "train" does not; chosen by the names of folder
        and file, so that it stays the same while others come and go. 0: every mode reads all of the directory.
      background: 0 (black) to 255 (white).
      shard_by: 'image', or 'none' (every worker reads all).
      shuffle_buffer: 0 keeps the order of names in mode "train"; anything else permutes the images as a whole.
      repeat: in mode "train": True (for ever), False (one pass), or a number of passes.
      on_broken: 'fail', or 'skip' broken images and count them in the log.

    Returns:
      A `tf.data.Dataset`.

    Raises:
      ModelError: what is wrong with an argument or the directory, in a line; while the data is read, with the image's path.
    """
    height, width = _check_arguments(image_size, dtype, validation_split, shard_by)
    order, broken = Order(context, shuffle_buffer, repeat), Broken(on_broken)
    images = [
        (path, label)
        for label, name in enumerate(class_names(directory))
        for path in _images_in(directory, name)
    ]
    images = _part(images, directory, context.mode, validation_split)
    images, reader = share_rows(images, "image", context, shard_by, order)
    paths, labels = np.array([path for path, _ in images], object), np.array([n for _, n in images], np.int64)

    def look_up(numbers):
        return [paths[numbers], labels[numbers]]

    @no_autograph
    def entries(numbers):
        return tuple(call(look_up, [numbers], [tf.string, tf.int64], [[None], [None]]))

    @no_autograph
    def read(path, label):
        return _read_one(path, label, (height, width), tf.as_dtype(dtype), background, broken)

    def read_all(numbers):
        data = numbers.batch(CHUNK).map(entries).unbatch()
        return data.interleave(read, CYCLE, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)

    return order.finish(order.row_batches(len(images), reader, read_all), reader)


def class_names(directory):
    """The names of a directory's classes, in the order of their labels; ModelError if there is none."""
    if not tf.io.gfile.isdir(directory):
        raise ModelError(
            f"Image directory {directory} does not exist. Expected is a directory with a folder for each class. Check the path "
            "and the host."
        )
    names = sorted(
        name
        for name in (entry.rstrip("/") for entry in tf.io.gfile.listdir(directory))
        if not name.startswith(".") and tf.io.gfile.isdir(os.path.join(directory, name))
    )
    if not names:
        raise ModelError(
            f"Image directory {directory} has no folder in it. Expected is one for each class, with its images."
        )
    return names


def _check_arguments(image_size, dtype, validation_split, shard_by):
    if not isinstance(image_size, (tuple, list)) or len(image_size) != 2 or min(image_size) < 1:
        raise ModelError(f"image_size={shown(image_size)}; (height, width) in pixels is expected.")
    if dtype not in ("float32", "uint8"):
        raise ModelError(f"dtype={shown(dtype)}; 'float32' or 'uint8' is expected.")
    if not 0 <= validation_split < 1:
        raise ModelError(f"validation_split={shown(validation_split)} is out of range; 0 to 1 is expected.")
    if shard_by not in ("image", "none"):
        raise ModelError(f"shard_by={shown(shard_by)} is unknown; 'image' or 'none' is expected.")
    return image_size


def _images_in(directory, name):
    """Sorted paths of the images in a class's folder."""
    folder = os.path.join(directory, name)
    found = sorted(
        os.path.join(place, file)
        for place, _, files in tf.io.gfile.walk(folder)
        for file in files
        if file.lower().endswith(SUFFIXES)
    )
    if not found:
        raise ModelError(
            f"Class folder {folder} has no image in it; {', '.join(SUFFIXES)} are expected. Put some there, or remove the folder."
        )
    return found


def _part(images, directory, mode, validation_split):
    """Those of the training or of the validation part; all if there is no split."""
    if not validation_split:
        return images
    is_wanted = mode != ModeKeys.TRAIN
    part = [image for image in images if (_share(image[0], directory) < validation_split) == is_wanted]
    if not part:
        raise ModelError(
            f"validation_split={validation_split} leaves no image of {directory}'s {len(images)} for mode {mode!r}. Choose another."
        )
    return part


def _share(path, directory):
    """A number from 0 to 1 that the name below the directory gives."""
    name = os.path.relpath(path, directory).replace(os.sep, "/")
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big") / 2**48


def _read_one(path, label, size, dtype, background, broken):
    """A dataset of the image; what cannot be decoded gives none, and is told of."""

    @no_autograph
    def decode(path):
        image = tf.io.decode_image(tf.io.read_file(path), expand_animations=False)
        image = tf.image.resize(_on_background(image, background), size, antialias=True)
        image = tf.clip_by_value(
            tf.ensure_shape(image, [*size, 3]), 0.0, 255.0
        )  # rounding may lead out of it
        return tf.cast(tf.round(image), tf.uint8) if dtype == tf.uint8 else image / 255.0

    def complain(path):
        path = path.decode()
        broken.tell(path, 0, _reason(path))
        raise ModelError(f"{path} is left out.")

    @no_autograph
    def told(path):
        return call(complain, [path], dtype, [*size, 3])

    one = tf.data.Dataset.from_tensors(path)
    otherwise = one.map(told)
    if broken.policy == "skip":
        otherwise = otherwise.ignore_errors()
    image = one.map(decode).ignore_errors().concatenate(otherwise).take(1)
    return image.map(lambda pixels: (pixels, label))


def _on_background(image, background):
    """uint8 `[h, w, 1 to 4]` as float32 `[h, w, 3]`: grey is RGB, and alpha, if any is above 0, lets the background through."""
    image = tf.cast(image, tf.float32)
    channels = tf.shape(image)[-1]
    has_alpha = tf.equal(channels % 2, 0)
    alpha = tf.where(has_alpha & (tf.reduce_max(image[..., -1]) > 0), image[..., -1:] / 255.0, 1.0)
    colors = image[..., : channels - tf.cast(has_alpha, tf.int32)] + tf.zeros([1, 1, 3])
    return colors * alpha + background * (1.0 - alpha)


def _reason(path):
    """What is wrong with an image."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = file.read(16)
    except tf.errors.OpError as error:
        return f"it cannot be read ({error.message.splitlines()[0]})"
    if not content:
        return "it is empty; an image is expected"
    if not content.startswith((b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM")):
        return f"it begins with {shown(content[:8])} and is no PNG, JPEG, BMP or GIF"
    return "it is no complete image of its kind"
