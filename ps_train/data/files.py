"""Which files a helper reads, and how they are compressed; paths of any file system that TensorFlow knows.

paths = find_files("data/*.csv")        # sorted; also a path, a folder's files are named by a glob, or a list of these
compression_of(paths[0])                # "" or "GZIP", by its first bytes
"""

import glob
import gzip
import io
import os
import zlib

from ps_train.compat import tf
from ps_train.errors import ModelError
from ps_train.model.spec import describe
from ps_train.wording import shown

GZIP_MAGIC = b"\x1f\x8b"
COMPRESSIONS = ("auto", "", "GZIP", "ZLIB")
_BLOCK_BYTES = 2**20


def find_files(files):
    """The paths that a path, a glob or a list of both names, sorted and each once; ModelError if one names nothing.

    Args:
      files: str, path-like, or a list or tuple of them.
    """
    patterns = list(files) if isinstance(files, (list, tuple)) else [files]
    if not patterns:
        raise ModelError("files is an empty list; a path, a glob or a list of them is expected.")
    found = {path for pattern in patterns for path in _match(pattern)}
    return sorted(found)


def _match(pattern):
    if not isinstance(pattern, (str, os.PathLike)):
        raise ModelError(f"files has {describe(pattern)}; a path, a glob or a list of them is expected.")
    pattern = os.fspath(pattern)
    if tf.io.gfile.exists(pattern):  # also one that has [ or * in its name
        if tf.io.gfile.isdir(pattern):
            raise ModelError(
                f"{pattern} is a directory; files are expected. Name those in it, such as {os.path.join(pattern, '*')}."
            )
        return [pattern]
    if not glob.has_magic(pattern):
        folder = os.path.dirname(pattern) or os.curdir
        what = "" if tf.io.gfile.isdir(folder) else f": there is no directory {folder}"
        raise ModelError(f"File {pattern} does not exist{what}. Check the path and the host.")
    found = [path for path in tf.io.gfile.glob(pattern) if not tf.io.gfile.isdir(path)]
    if not found:
        raise ModelError(
            f"No file matches {pattern} on this host. Check the path: it is relative to {os.getcwd()} if it does not begin with /."
        )
    return found


def size_of(path):
    """Bytes of a file."""
    return tf.io.gfile.stat(path).length


def check_compression(compression):
    """Raises ModelError for an unknown one."""
    if compression not in COMPRESSIONS:
        raise ModelError(
            f"compression={shown(compression)} is unknown; 'auto', '', 'GZIP' or 'ZLIB' is expected."
        )


def compression_of(path):
    """'GZIP' or '' by the first bytes; ModelError if the file cannot be read."""
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return "GZIP" if file.read(len(GZIP_MAGIC)) == GZIP_MAGIC else ""
    except tf.errors.OpError as error:
        raise ModelError(
            f"{path} cannot be read any more ({error.message.splitlines()[0]}). Check the file."
        ) from None


class _Raw(io.RawIOBase):
    """A file of any file system as one of Python's."""

    def __init__(self, path):
        super().__init__()
        self._file = tf.io.gfile.GFile(path, "rb")

    def readable(self):
        return True

    def readinto(self, buffer):
        content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def close(self):
        self._file.close()
        super().close()


def open_file(path):
    """The content as a binary file, uncompressed if it is gzipped."""
    file = io.BufferedReader(_Raw(path), _BLOCK_BYTES)
    return gzip.GzipFile(fileobj=file) if compression_of(path) == "GZIP" else file


def broken_gzip(path):
    """What is wrong with a gzipped file, which TensorFlow's text readers take for its end; None if nothing is."""
    try:
        with open_file(path) as file:
            while file.read(_BLOCK_BYTES):
                pass
    except (EOFError, OSError, zlib.error) as error:
        return f"it is no complete gzip file ({error}), and its last record may be cut"
    return None
