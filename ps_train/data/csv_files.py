"""CSV files with a header, plain or gzipped, as batches of columns.

    data = from_csv(context, "flights/*.csv", label="arr_delay", columns={"distance": 0.0, "tailnum": ""})
    data = data.map(lambda row, delay: (row, tf.cast(delay > 15, tf.float32)))

Fields in double quotes may hold delimiters, newlines and doubled quotes (RFC 4180). A line without anything in it is no record.
"""

import csv
import functools
import io
import itertools
import sys
import zlib

from ps_train.compat import tf
from ps_train.data import columns as column_types
from ps_train.data import files as file_access
from ps_train.data import records
from ps_train.data.broken import Broken
from ps_train.data.calls import no_autograph
from ps_train.data.order import Order
from ps_train.data.sharding import share_files
from ps_train.errors import ModelError
from ps_train.wording import shown

SAMPLE_ROWS = 1000


def from_csv(
    context,
    files,
    label=None,
    columns=None,
    *,
    delimiter=",",
    na_value="NA",
    shard_by="auto",
    shuffle_buffer=10_000,
    repeat=True,
    on_broken="fail",
):
    r"""A dataset of (dict of columns `[batch]`, labels `[batch]`), or of the dict alone.

    >>> _ = open("a.csv", "w").write("age,town,paid\n31,Ulm,1.5\nNA,Jena,2\n")
    >>> from_csv(ps_train.InputContext(mode="eval"), "a.csv", label="paid", columns={"age": 0, "town": ""}).element_spec
    ({'age': ...dtype=tf.int64..., 'town': ...dtype=tf.string...}, ...dtype=tf.float32...)

    A value is missing where nothing or `na_value` stands. It becomes the default that `columns` declares for its column; a row
    without a value for a declared type is broken, one without a label is left out.

    Args:
      context: what `input_fn` gets.
      files: a path, a glob, or a list of them; all with the same header.
      label: name of the label's column.
      columns: None for all, a list of names, or a dict: name -> default, whose type is the column's (0.0: float32, 0: int64,
        "": string), or name -> type. What is not declared is inferred from the first 1000 rows of the first file: int64 without
        missing values, float32 with NaN for them, or string with "".
      delimiter: between fields.
      na_value: what stands for a missing value, beside nothing at all.
      shard_by: 'auto', 'file', 'record', or 'none' (every worker reads all); see `ps_train.data.sharding`.
      shuffle_buffer: records, in mode "train"; 0: in their own order.
      repeat: in mode "train": True (for ever), False (one pass), or a number of passes.
      on_broken: 'fail', or 'skip' broken records and count them in the log.

    Returns:
      A `tf.data.Dataset`.

    Raises:
      ModelError: what is wrong with an argument or a file, in a line; while the data is read, with record and line.
    """
    order, broken = Order(context, shuffle_buffer, repeat), Broken(on_broken)
    paths = file_access.find_files(files)
    header = _common_header(paths, delimiter)
    rows = itertools.islice(_rows(paths[0], delimiter), 1, 1 + SAMPLE_ROWS)
    sample = [row for _, row in rows if len(row) == len(header)]
    chosen = column_types.choose(header, sample, columns, label, na_value)
    plan = share_files([file_access.size_of(path) for path in paths], context, shard_by, order)
    defaults = column_types.record_defaults(header, chosen)
    form = records.Format(
        functools.partial(_read, defaults, delimiter, na_value),
        tuple(column_types.filler(default) for default in defaults),
        functools.partial(_reasons, chosen, len(header), delimiter, na_value),
        functools.partial(_has_labels, chosen) if any(column.is_left_out for column in chosen) else None,
        file_access.broken_gzip,
        pick=[column.position for column in chosen],
    )
    data = records.read_batches(paths, "auto", plan, order, form, broken)
    feature_names = [column.name for column in chosen if column.name != label]

    @no_autograph
    def as_dict(*values):
        row = {column.name: value for column, value in zip(chosen, values, strict=True)}
        features = {name: row[name] for name in feature_names}
        return features if label is None else (features, row[label])

    return order.finish(data.map(as_dict), plan.reader)


def _read(defaults, delimiter, na_value, path, compression):
    return tf.data.experimental.CsvDataset(  # of all columns: with `select_cols` it does not count the fields
        path,
        defaults,
        compression_type=compression,
        buffer_size=2**20,
        header=True,
        field_delim=delimiter,
        na_value=na_value,
    )


def _has_labels(chosen, values):
    present = [
        column_types.has_value(column, values[column.position]) for column in chosen if column.is_left_out
    ]
    return tf.reduce_all(tf.stack(present), 0)


def _rows(path, delimiter):
    """(line of its beginning, from 1; fields) of each row, the header first; ModelError where the file cannot be read."""
    csv.field_size_limit(sys.maxsize)
    with file_access.open_file(path) as file:
        text = io.TextIOWrapper(file, "utf-8-sig", "replace", newline="")
        # Python 3.10's reader refuses a whole file for one NUL.
        rows = csv.reader((line.replace("\0", "\ufffd") for line in text), delimiter=delimiter)
        line = 1
        try:
            for row in rows:
                yield line, row
                line = rows.line_num + 1
        except (EOFError, OSError, zlib.error, csv.Error) as error:
            raise ModelError(f"{path} is no readable CSV file ({error}). Copy or write it again.") from None


def _common_header(paths, delimiter):
    first = None
    for path in paths:
        header = _header(path, delimiter)
        if first is None:
            first = header
        elif header != first:
            lacks = [name for name in first if name not in header]
            more = [name for name in header if name not in first]
            told = [f"lacks {', '.join(lacks)}"] * bool(lacks) + [f"has {', '.join(more)} more"] * bool(more)
            raise ModelError(
                f"{path} has another header than {paths[0]}: it {' and '.join(told) or 'has them in another order'}. The same "
                "is expected in all files; read other ones with a call of their own."
            )
    return first


def _header(path, delimiter):
    _, header = next(_rows(path, delimiter), (1, []))
    if not header:
        raise ModelError(f"{path} has no header; names of columns are expected in its first line.")
    return header


def _reasons(chosen, num_fields, delimiter, na_value, path, _, numbers):
    """By Python's reader, which tells more than TensorFlow's, and passes some things that this does not."""
    wanted, found, number = set(numbers), {}, -1
    rows = enumerate(itertools.islice(_rows(path, delimiter), 1, None))
    try:
        for number, (line, row) in rows:
            if number in wanted and row:
                reason = column_types.fault(chosen, num_fields, row, na_value)
                if reason is None:
                    text = shown(delimiter.join(row))
                    reason = f"TensorFlow's reader refuses it, as it does quotes within a field: {text}"
                found[number] = f"record {number + 1} (line {line}): {reason}"
    except ModelError:  # the file is cut, of which `broken_gzip` tells
        return found
    for beyond in sorted(wanted - set(range(number + 1)))[
        :1
    ]:  # a quote was not closed, as TensorFlow sees it
        found[beyond] = f"record {beyond + 1}: quotes are not those of CSV fields"
    return found
