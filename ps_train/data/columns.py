"""The columns of CSV files: what a header offers, what type each has, and what a missing value becomes.

chosen = choose(header, sample, {"distance": 0.0, "dest": ""}, label="arr_delay", na_value="NA")
fault(chosen, len(header), row, "NA")     # "column 'distance' holds 'x12', and a float32 is expected"
"""

import re
from typing import NamedTuple

from ps_train.compat import tf
from ps_train.errors import ModelError
from ps_train.model.spec import describe
from ps_train.wording import counted, did_you_mean, shown

_INT = re.compile(r"[+-]?[0-9]{1,18}")
_TYPES = {int: "int64", float: "float32", str: "string"}
_ALLOWED = ("float32", "float64", "int32", "int64", "string")


class Column(NamedTuple):
    """One column that is read.

    Attributes:
      name: in the header.
      position: in the header, from 0.
      dtype: tf.DType.
      default: what a missing value becomes; None: a row without one is broken.
      is_left_out: whether a row without a value is left out, as one without a label is.
    """

    name: str
    position: int
    dtype: object
    default: object
    is_left_out: bool = False


def choose(header, sample, columns, label, na_value):
    """The Columns that are read, in the header's order.

    Args:
      header: names, as in the files.
      sample: rows of the first file, lists of str: types that are not declared are inferred from them.
      columns: None (all), names, or name -> type or default.
      label: name or None.
      na_value: text that stands for a missing value, beside none at all.
    """
    declared = _declared(columns)
    wanted = list(header) if columns is None else [*declared]
    for name in [*wanted, *([] if label is None else [label])]:
        if header.count(name) != 1:
            problem = "is not in the header" if name not in header else "is there more than once"
            hint = did_you_mean(str(name), header) if name not in header else ""
            raise ModelError(
                f"Column {shown(name)} {problem}: {', '.join(header)}. {hint}Check label and columns."
            )
    found = []
    for index, name in enumerate(header):
        if name not in wanted and name != label:
            continue
        values = [row[index] for row in sample if index < len(row)]
        kind = declared.get(name)
        column = Column(name, index, *(_infer(values, na_value) if kind is None else _declare(name, kind)))
        if name == label and (column.default is None or kind is None):
            column = column._replace(default=_mark(column.dtype), is_left_out=True)
        found.append(column)
    return found


def _declared(columns):
    if columns is None:
        return {}
    if isinstance(columns, dict):
        return columns
    if isinstance(columns, (list, tuple)):
        return dict.fromkeys(columns)
    raise ModelError(
        f"columns is {describe(columns)}; a list of names, or a dict of names and types or defaults is expected."
    )


def _declare(name, kind):
    """(dtype, default) of a declaration: a type, or the value that a missing one becomes."""
    if type(kind) in _TYPES:
        return tf.as_dtype(_TYPES[type(kind)]), kind
    try:
        dtype = tf.as_dtype(_TYPES.get(kind, kind))
    except TypeError:
        dtype = None
    if dtype is None or dtype.name not in _ALLOWED:
        raise ModelError(
            f"columns[{name!r}] is {shown(kind)}; a default such as 0.0, 0 or '', or a type of {', '.join(_ALLOWED)} is expected."
        )
    return dtype, None


def _infer(values, na_value):
    """(dtype, default) by a sample of values: an int column without a gap there is to have none elsewhere."""
    present = [value for value in values if value not in ("", na_value)]
    if present and all(map(_INT.fullmatch, present)) and len(present) == len(values):
        return tf.int64, None
    if present and all(map(_is_float, present)):
        return tf.float32, float("nan")
    return tf.string, ""


def _is_float(text):
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text and text.isascii()  # the others' digits and blanks are none for TensorFlow


def _mark(dtype):
    """What stands for a missing label until its row is left out."""
    return "" if dtype == tf.string else float("nan") if dtype.is_floating else dtype.min


def has_value(column, values):
    """Whether a label is there: a bool vector."""
    return ~tf.math.is_nan(values) if column.dtype.is_floating else tf.not_equal(values, column.default)


def record_defaults(header, chosen):
    """What `CsvDataset` wants of each column of the header: a default, or a type if a value has to be there."""
    found = [tf.constant([""])] * len(header)
    for column in chosen:
        found[column.position] = (
            column.dtype if column.default is None else tf.constant([column.default], column.dtype)
        )
    return found


def filler(record_default):
    """Any value of a column's type."""
    dtype = getattr(record_default, "dtype", record_default)
    return tf.constant("" if dtype == tf.string else 0, dtype)


def fault(chosen, num_fields, row, na_value):
    """What is wrong with a row, a list of str; None if nothing is."""
    if len(row) != num_fields:
        return f"it has {counted(len(row), 'field')}, and the header has {num_fields}"
    for column in chosen:
        text = row[column.position]
        if text in ("", na_value):
            if column.default is None:
                return (
                    f"column {column.name!r} has no value, and {_a(column.dtype)} is expected: give "
                    f"columns={{{column.name!r}: ...}} a default"
                )
        elif not _fits(column.dtype, text):
            return f"column {column.name!r} holds {shown(text)}, and {_a(column.dtype)} is expected"
    return None


def _a(dtype):
    return f"{'an' if dtype.is_integer else 'a'} {dtype.name}"


def _fits(dtype, text):
    if dtype.is_integer:
        return bool(re.fullmatch(r"[+-]?[0-9]+", text)) and dtype.min <= int(text) <= dtype.max
    return dtype == tf.string or _is_float(text)
