"""The input helpers: each record to exactly one worker, in a stated order, and every mistake in a line that names the file."""

import collections
import gzip
import logging
import os
import pathlib
import struct

import numpy as np
import pytest

import ps_train
from ps_train import data as helpers
from ps_train.compat import tf, tf1
from ps_train.data import broken, files, sharding
from ps_train.errors import ModelError
from ps_train.explain import as_model_error

pytestmark = pytest.mark.graph


def context(mode="train", batch_size=4, shard=0, of=1, seed=7):
    return ps_train.InputContext(mode, batch_size, of, shard, seed)


def batches(make, limit=100):
    """The batches of each dataset that `make()` gives (one, or a list), up to `limit` of each; ModelError as a task has it."""
    with tf.Graph().as_default() as graph:
        tf1.set_random_seed(1)
        made = make()
        iterators = [
            tf1.data.make_initializable_iterator(d) for d in (made if isinstance(made, list) else [made])
        ]
        nexts, found = [iterator.get_next() for iterator in iterators], []
        with tf1.Session() as session:
            try:
                session.run([iterator.initializer for iterator in iterators])
                for element in nexts:
                    found.append([])
                    while len(found[-1]) < limit:
                        try:
                            found[-1].append(session.run(element))
                        except tf.errors.OutOfRangeError:
                            break
            except tf.errors.OpError as error:
                raise as_model_error(error, graph) from error
    return found if isinstance(made, list) else found[0]


def write_csv(path, rows, header="i,x,name"):
    text = "".join(f"{line}\n" for line in [header, *rows])
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


def rows_of(numbers):
    return [f"{i},{i / 2},n{i}" for i in numbers]


def write_tfrecords(path, records, compression=""):
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def example(i):
    int_list = tf.train.Int64List(value=[i])
    return tf.train.Example(
        features=tf.train.Features(feature={"i": tf.train.Feature(int64_list=int_list)})
    ).SerializeToString()


WORKERS = (1, 2, 3, 5)
LAYOUTS = {
    "one": [23],
    "few": [11, 2],
    "even": [8] * 10,
    "lopsided": [40, 1, 1, 0, 2, 1, 1],
    "gzipped": [9, 5, 6],
}


def write_layout(folder, lengths, write, suffix):
    start = 0
    for number, length in enumerate(lengths):
        write(folder / f"part{number:02}{suffix}", range(start, start + length))
        start += length
    return start


@pytest.mark.parametrize(
    "kind, layout",
    [*(("csv", layout) for layout in LAYOUTS), ("tfrecords", "even"), ("tfrecords", "gzipped")],
)
def test_each_record_goes_to_exactly_one_worker(tmp_path, kind, layout):
    gz = ".gz" if layout == "gzipped" else ""

    def write(path, numbers):
        if kind == "csv":
            write_csv(path, rows_of(numbers))
        else:
            write_tfrecords(path, map(example, numbers), "GZIP" if gz else "")

    total = write_layout(tmp_path, LAYOUTS[layout], write, f".{kind}{gz}")
    pattern = str(tmp_path / f"*.{kind}{gz}")

    def read(shard, num_workers):
        where = context(shard=shard, of=num_workers)
        if kind == "csv":
            return helpers.from_csv(where, pattern, columns={"i": 0}, repeat=False)
        spec = {"i": tf.io.FixedLenFeature([], tf.int64)}
        return helpers.from_tfrecords(where, pattern, spec, repeat=False)

    found = batches(lambda: [read(shard, n) for n in WORKERS for shard in range(n)])
    parts = iter([[i for batch in part for i in batch["i"].tolist()] for part in found])
    for n in WORKERS:
        shards = [next(parts) for _ in range(n)]
        assert sorted(i for shard in shards for i in shard) == list(range(total)), n
        assert max(map(len, shards)) - min(map(len, shards)) <= 8, n


def test_by_file_where_that_is_even_and_by_record_otherwise():
    assert sharding.plan_files([9] * 4, 2, 1) == ("file", (1, 3), 1, 0, None)
    assert sharding.plan_files([9] * 3, 2, 1).way == "record"  # 2 files against 1
    assert sharding.plan_files([9] * 2, 3, 1).way == "record"
    assert sharding.plan_files([90, 9, 9, 9], 2, 1).way == "record"
    assert sharding.plan_files([90, 9, 9, 9], 2, 1, "file") == ("file", (1, 3), 1, 0, None)
    assert sharding.plan_files([9] * 4, 2, 1, "none") == ("none", (0, 1, 2, 3), 1, 0, None)
    assert sharding.plan_files([9], 3, 2, "file").files == ()
    with pytest.raises(ModelError, match="shard_by='files' is unknown; one of .* Did you mean file?"):
        sharding.plan_files([9], 2, 0, "files")


def test_it_says_once_what_it_did(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("ps_train"), "propagate", True)
    caplog.set_level(logging.INFO, "ps_train")
    for number in range(4):
        write_csv(tmp_path / f"{number}.csv", rows_of(range(5)))
    with tf.Graph().as_default():
        helpers.from_csv(context(shard=1, of=2), str(tmp_path / "*.csv"))
        helpers.from_csv(context(shard=2, of=3), str(tmp_path / "0.csv"))
        helpers.from_csv(context(of=3), str(tmp_path / "*.csv"), shard_by="none")
        helpers.from_csv(context("eval"), str(tmp_path / "0.csv"))
        helpers.from_numpy(context(shard=1, of=2), np.zeros(5))
    assert [record.getMessage() for record in caplog.records] == [
        "input: 2 files of 4, by file, shard 2 of 2",
        "input: each 3rd record of 1 file, by record, shard 3 of 3",
        "input: 4 files; each of 3 shards is all of it",
        "input: 1 file",
        "input: 2 rows of 5, by row, shard 2 of 2",
    ]


def test_an_empty_shard_gives_no_batch_though_it_is_to_repeat(tmp_path):
    path = write_csv(tmp_path / "a.csv", rows_of(range(2)))
    assert batches(lambda: helpers.from_csv(context(shard=2, of=3), path)) == []
    assert batches(lambda: helpers.from_csv(context(shard=1, of=2), path, shard_by="file")) == []
    assert batches(lambda: helpers.from_numpy(context(shard=2, of=3), np.zeros(2))) == []


@pytest.mark.parametrize("kind", ["csv", "numpy"])
def test_training_is_shuffled_by_the_seed_and_evaluation_is_in_order(tmp_path, kind):
    path = write_csv(tmp_path / "a.csv", rows_of(range(40)))

    def read(where, limit=10, **options):
        if kind == "csv":
            found = batches(lambda: helpers.from_csv(where, path, columns={"i": 0}, **options), limit)
        else:
            found = batches(lambda: helpers.from_numpy(where, {"i": np.arange(40)}, **options), limit)
        return [i for batch in found for i in batch["i"].tolist()]

    first = read(context(), limit=20)
    assert first == read(context(), limit=20)
    assert sorted(first[:40]) == sorted(first[40:]) == list(range(40)) and first[:40] != first[40:]
    assert first[:40] != list(range(40)) and first[:40] != read(context(seed=8))
    assert read(context("eval"), limit=99) == list(range(40))
    assert read(context(), shuffle_buffer=0) == list(range(40))
    assert len(read(context(), limit=99, repeat=3)) == 120
    assert sorted(read(context(seed=None), limit=99, repeat=False)) == list(range(40))


def test_many_files_are_read_in_the_order_of_names_in_evaluation(tmp_path):
    for number in range(12):
        write_csv(tmp_path / f"{number:02}.csv", rows_of(range(10 * number, 10 * number + 10)))
    found = batches(lambda: helpers.from_csv(context("eval", 50), str(tmp_path / "*.csv"), columns={"i": 0}))
    assert np.concatenate([batch["i"] for batch in found]).tolist() == list(range(120))


@pytest.mark.parametrize(
    "files, told",
    [
        ("{0}/none/a.csv", "File {0}/none/a.csv does not exist: there is no directory {0}/none. Check"),
        ("{0}/b.csv", "File {0}/b.csv does not exist. Check the path and the host."),
        ("{0}/*.tsv", "No file matches {0}/*.tsv on this host. Check the path"),
        ("{0}", "{0} is a directory; files are expected. Name those in it, such as {0}/*."),
        ([], "files is an empty list; a path, a glob or a list of them is expected."),
        ([3], "files has an int; a path, a glob or a list of them is expected."),
        ("{0}/empty.csv", "{0}/empty.csv has no header; names of columns are expected in its first line."),
        ("{0}/[oa].csv", "{0}/o.csv has another header than {0}/a.csv: it lacks x and has y more. The same"),
    ],
)
def test_files_that_are_not_there_or_differ(tmp_path, files, told):
    write_csv(tmp_path / "a.csv", rows_of(range(3)))
    write_csv(tmp_path / "o.csv", [], header="i,y,name")
    (tmp_path / "empty.csv").write_text("")
    files = files.format(tmp_path) if isinstance(files, str) else files
    with pytest.raises(ModelError) as raised:
        helpers.from_csv(context(), files)
    assert str(raised.value).startswith(told.format(tmp_path))


def test_paths_globs_and_lists_name_files(tmp_path):
    for name in ("b.csv", "a.csv", "[a].csv"):
        write_csv(tmp_path / name, rows_of(range(2)))
    read = [
        files.find_files(named)
        for named in (
            tmp_path / "a.csv", str(tmp_path / "[a].csv"), str(tmp_path / "?.csv"), [tmp_path / "b.csv", str(tmp_path / "*.csv")]
        )
    ]  # fmt: skip
    names = [[pathlib.Path(path).name for path in paths] for paths in read]
    assert names == [["a.csv"], ["[a].csv"], ["a.csv", "b.csv"], ["[a].csv", "a.csv", "b.csv"]]


CSV_FAULTS = {
    "text": ("2,no,b", "record 2 (line 3): column 'x' holds 'no', and a float32 is expected"),
    "float for int": ("2.5,1,b", "record 2 (line 3): column 'i' holds '2.5', and an int64 is expected"),
    "other digits": ("٢,1,b", "record 2 (line 3): column 'i' holds '٢', and an int64 is expected"),
    "other decimals": ("2,١.٥,b", "record 2 (line 3): column 'x' holds '١.٥', and a float32 is expected"),
    "a wide blank": ("2,1\xa0,b", "record 2 (line 3): column 'x' holds '1\\xa0', and a float32 is expected"),
    "missing": (",1,b", "record 2 (line 3): column 'i' has no value, and an int64 is expected: give columns={'i': ...} a default"),
    "too few": ("2,1", "record 2 (line 3): it has 2 fields, and the header has 3"),
    "too many": ("2,1,b,c", "record 2 (line 3): it has 4 fields, and the header has 3"),
    "quotes": ('2,1,b"c', "record 2 (line 3): TensorFlow's reader refuses it, as it does quotes within a field: '2,1,b\"c'"),
    "behind quotes": ('2,1,"b"c', "record 2 (line 3): TensorFlow's reader refuses it, as it does quotes within a field: '2,1,bc'"),
    "NUL": ("2,1\0,b", "record 2 (line 3): column 'x' holds '1\ufffd', and a float32 is expected"),
    "open quote": ('2,1,"b', "record 2 (line 3): "),
}  # fmt: skip


@pytest.mark.parametrize("name", CSV_FAULTS)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_broken_csv_record_is_named(tmp_path, name, suffix):
    line, told = CSV_FAULTS[name]
    path = write_csv(tmp_path / f"ä b.csv{suffix}", ["1,0.5,a", line, "3,1.5,c"])
    columns = {"i": tf.int64, "x": 0.0, "name": ""}
    with pytest.raises(ModelError) as raised:
        batches(lambda: helpers.from_csv(context(), path, columns=columns, repeat=False))
    text = str(raised.value)
    assert text.startswith(f"{path}: {told}") and text.endswith("on_broken='skip'.") and "\n" not in text
    found = batches(
        lambda: helpers.from_csv(context("eval"), path, columns=columns, on_broken="skip"), limit=9
    )
    expected = (
        [1] if name in ("open quote", "behind quotes") else [1, 3]
    )  # the reader takes the next line for the same record
    assert [i for batch in found for i in batch["i"].tolist()] == expected


def test_what_is_left_out_is_counted_by_one_worker_and_once(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("ps_train"), "propagate", True)
    rows = [f"{i},{'no' if i % 3 == 0 else i},n" for i in range(30)]
    path = write_csv(tmp_path / "a.csv", rows)

    def make():
        return [
            helpers.from_csv(
                context(shard=k, of=2), path, columns={"i": 0, "x": 0.0}, repeat=3, on_broken="skip"
            )
            for k in range(2)
        ]

    found = batches(make)
    seen = collections.Counter(i for part in found for batch in part for i in batch["i"].tolist())
    assert seen == {i: 3 for i in range(30) if i % 3}
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 10 and len(set(told)) == 10 and sum("5 so far" in line for line in told) == 2


def test_fields_with_delimiters_newlines_and_quotes_and_blank_lines(tmp_path):
    rows = ['1,1,"a,b"', '2,2,"c\nd"', "", '3,NA,"say ""e"""', "4,,", "\r", ""]
    path = write_csv(tmp_path / "a.csv", rows, header="\ufeffi,x,name")
    ((features, labels),) = batches(
        lambda: helpers.from_csv(context("eval", 9), path, "i", {"x": -1.0, "name": "?"})
    )
    assert labels.tolist() == [1, 2, 3, 4]
    assert features["name"].tolist() == [b"a,b", b"c\nd", b'say "e"', b"?"]
    assert features["x"].tolist() == [1, 2, -1, -1]


def test_digits_that_tensorflow_does_not_read_are_no_numbers(tmp_path):
    path = write_csv(tmp_path / "a.csv", ["١,١.٥,1", "٢,٢.٥,2"], header="a,b,c")
    (features,) = batches(lambda: helpers.from_csv(context("eval", 9), path))
    assert features["a"].tolist() == ["١".encode(), "٢".encode()] and features["c"].tolist() == [1, 2]
    assert features["b"].dtype == object


def test_a_nul_byte_in_a_sampled_row_is_that_rows_matter(tmp_path):
    path = write_csv(tmp_path / "a.csv", ["1,a\0b", "\0,c", "3,d"], header="i,s")
    (features,) = batches(
        lambda: helpers.from_csv(context("eval", 9), path, columns={"i": 0, "s": ""}, on_broken="skip")
    )
    assert features["i"].tolist() == [1, 3] and features["s"].tolist() == [b"a\0b", b"d"]


def test_types_are_inferred_and_rows_without_a_label_left_out(tmp_path):
    rows = ["1,0.5,x,7,10", "2,NA,y,,11", "3,1.5,,9,NA", "4,2,z,9,13"]
    path = write_csv(tmp_path / "a.csv", rows, header="id,f,s,gap,delay")
    ((features, labels),) = batches(lambda: helpers.from_csv(context("eval", 9), path, "delay"))
    assert list(features) == ["f", "gap", "id", "s"] or list(features) == ["id", "f", "s", "gap"]
    assert labels.dtype == np.float32 and labels.tolist() == [10, 11, 13]
    assert features["id"].dtype == np.int64 and features["id"].tolist() == [1, 2, 4]
    assert features["s"].tolist() == [b"x", b"y", b"z"]
    np.testing.assert_array_equal(features["gap"], np.array([7, np.nan, 9], np.float32))
    ((features, labels),) = batches(
        lambda: helpers.from_csv(context("eval", 9), path, "delay", {"delay": -1.0, "s": ""})
    )
    assert list(features) == ["s"] and labels.tolist() == [10, 11, -1, 13]
    (features,) = batches(lambda: helpers.from_csv(context("eval", 9), path, columns=["id"]))
    assert features["id"].tolist() == [1, 2, 3, 4]
    ((_, labels),) = batches(
        lambda: helpers.from_csv(context("eval", 9), path, "gap", {"id": 0, "gap": tf.int32})
    )
    assert labels.dtype == np.int32 and labels.tolist() == [7, 9, 9]


@pytest.mark.parametrize(
    "arguments, told",
    [
        ({"label": "pric"}, "Column 'pric' is not in the header: a, price, b, b. Did you mean price? Check label and columns."),
        ({"columns": ["b"]}, "Column 'b' is there more than once: a, price, b, b. Check label and columns."),
        ({"columns": {"a": None}, "label": "c"}, "Column 'c' is not in the header"),
        ({"columns": {"a": "int8"}, "on_broken": "ignore"}, "on_broken='ignore' is unknown; 'fail' or 'skip' is expected."),
        ({"columns": {"a": tf.int8}}, "columns['a'] is tf.int8; a default such as 0.0, 0 or '', or a type of"),
        ({"columns": {"a": [1]}}, "columns['a'] is [1]; a default such as 0.0"),
        ({"columns": 3}, "columns is an int; a list of names, or a dict"),
        ({"shuffle_buffer": -1}, "shuffle_buffer=-1 is out of range; a number of records is expected, 0 for their own order."),
        ({"repeat": 0}, "repeat=0 is out of range; True (for ever), False (one pass) or a number of passes is expected."),
        ({"repeat": "yes"}, "repeat='yes' is out of range"),
    ],
)  # fmt: skip
def test_wrong_arguments_of_from_csv(tmp_path, arguments, told):
    path = write_csv(tmp_path / "a.csv", ["1,2,3,4"], header="a,price,b,b")
    with pytest.raises(ModelError) as raised:
        helpers.from_csv(context(), path, **{"columns": ["a"], **arguments})
    assert str(raised.value).startswith(told)


def test_a_truncated_gzipped_csv_is_not_taken_for_its_end(tmp_path):
    path = pathlib.Path(write_csv(tmp_path / "a.csv.gz", rows_of(i * 7919 % 10007 for i in range(5000))))
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(
        ModelError, match=r"a\.csv\.gz: it is no complete gzip file \(.*its last record may be cut\. Mend"
    ):
        batches(lambda: helpers.from_csv(context(), str(path), columns={"i": 0}, repeat=False), 9999)  # fmt: skip


def test_a_file_that_vanishes_is_named(tmp_path):
    path = write_csv(tmp_path / "a.csv", rows_of(range(3)))

    def make():
        made = helpers.from_csv(context(), path)
        os.remove(path)
        return made

    with pytest.raises(
        ModelError, match=rf"^{path} cannot be read any more \(.*No such file.*\)\. Check the file\.$"
    ):
        batches(make)  # fmt: skip


def test_broken_tfrecords_are_named(tmp_path):
    whole = pathlib.Path(write_tfrecords(tmp_path / "whole", [b"abc", b"defg", b"hi"])).read_bytes()
    gzipped = pathlib.Path(write_tfrecords(tmp_path / "gz", [b"abc" * 99], "GZIP")).read_bytes()
    cases = {
        "flipped": (whole[:35] + b"?" + whole[36:], "record 2 is broken, and what follows cannot be read: corrupted record at 31", 1),
        "cut": (whole[:-3], "record 3 is broken, and what follows cannot be read: truncated record at 39", 2),
        "text": (b"i,x\n1,2\n" * 9, "record 1 is broken, or it is no TFRecord file at all: corrupted record at 0", 0),
        "cut gzip": (gzipped[:-12], "record 1 is broken, or it is no gzipped TFRecord file at all: ", 0),
    }  # fmt: skip
    for name, (content, told, num_good) in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ModelError) as raised:
            batches(
                lambda path=path: helpers.from_tfrecords(
                    context(), str(path), parse_fn=tf.strings.length, repeat=False
                )
            )
        assert str(raised.value).startswith(f"{path}: {told}") and "\n" not in str(raised.value)
        found = batches(
            lambda path=path: helpers.from_tfrecords(
                context("eval"), str(path), parse_fn=tf.strings.length, on_broken="skip"
            )
        )
        assert sum(map(len, found)) == num_good
    (sizes,) = batches(
        lambda: helpers.from_tfrecords(context("eval"), str(tmp_path / "whole"), parse_fn=tf.strings.length)
    )
    assert sizes.tolist() == [3, 4, 2]
    with pytest.raises(
        ModelError, match="whole: record 1 is broken, or it is no gzipped TFRecord file at all: "
    ):
        batches(lambda: helpers.from_tfrecords(context(), str(tmp_path / "whole"), parse_fn=tf.strings.length, compression="GZIP"))  # fmt: skip


def test_parsing_of_tfrecords(tmp_path):
    path = write_tfrecords(tmp_path / "a", map(example, range(6)))
    spec = {"i": tf.io.FixedLenFeature([], tf.int64), "j": tf.io.FixedLenFeature([], tf.int64, 5)}
    first, second = batches(lambda: helpers.from_tfrecords(context("eval"), path, spec, label="i"))
    assert first[0]["j"].tolist() == [5] * 4 and first[1].tolist() == [0, 1, 2, 3] and list(first[0]) == ["j"]
    assert second[1].tolist() == [4, 5]
    spec["k"] = tf.io.FixedLenFeature([], tf.int64)
    with pytest.raises(
        ModelError,
        match=r"^InvalidArgumentError in op \S+ \(made at .*test_data\.py:\d+\): .*Feature: k .*required",
    ) as raised:
        batches(lambda: helpers.from_tfrecords(context("eval"), path, spec, label="i"))
    assert "\n" not in str(raised.value)
    del spec["k"]
    for arguments, told in (
        ({}, "Neither of features and parse_fn is given; one of them is expected."),
        ({"features": spec, "parse_fn": len}, "Both of features and parse_fn are given; one"),
        ({"features": spec, "label": "k"}, "label='k' is not among the features i, j."),
        ({"features": ["i"]}, "features is a list of 1; a dict of tf.io.FixedLenFeature"),
        ({"parse_fn": 3}, "parse_fn is an int; a parse_fn is a function"),
        ({"parse_fn": len, "compression": "gz"}, "compression='gz' is unknown; 'auto', '', 'GZIP' or 'ZLIB'"),
    ):
        with pytest.raises(ModelError) as raised:
            helpers.from_tfrecords(context(), path, **arguments)
        assert str(raised.value).startswith(told)


def test_arrays_stay_outside_the_graph_and_keep_their_structure(tmp_path):
    big = np.arange(3 * 2**20, dtype=np.float32).reshape([-1, 3])
    np.save(tmp_path / "big.npy", big)
    labels = np.arange(len(big)).astype("U")

    def make():
        made = helpers.from_numpy(
            context(shard=1, of=2), {"a": str(tmp_path / "big.npy"), "b": (big[:, 0], big)}, labels
        )
        assert made.element_spec[0]["a"].shape.as_list() == [None, 3]
        assert tf1.get_default_graph().as_graph_def().ByteSize() < 2**20
        return made

    for features, names in batches(make, 3):
        rows = names.astype(int)
        assert (rows % 2 == 1).all()
        np.testing.assert_array_equal(features["a"], big[rows])
        np.testing.assert_array_equal(features["b"][0], big[rows, 0])
        np.testing.assert_array_equal(features["b"][1], big[rows])


def test_wrong_arrays(tmp_path):
    (tmp_path / "bad.npy").write_bytes(b"hello")
    np.savez(tmp_path / "two.npz", a=np.zeros(2), b=np.zeros(2))
    for features, labels, told in (
        ({"a": np.zeros(3), "b": np.zeros(4)}, None, "features['b'] has 4 rows, and features['a'] has 3; as many of both"),
        (np.zeros(3), np.zeros(4), "labels has 4 rows, and features has 3; as many of both are expected."),
        (3, None, "features is an int; an array with a row for each example is expected."),
        ([1, 2, 3], [0, 1, 0], "features is a list of 3; an array with a row for each example is expected: np.asarray makes one."),
        ({"a": [[1, 2], [3]]}, None, "features['a'] is a list of 2; an array with a row for each example is expected: np.asarray"),
        (np.zeros(3), range(3), "labels is a range; an array with a row for each example is expected: np.asarray makes one."),
        ({}, None, "features holds no array; one at least is expected."),
        (str(tmp_path / "no.npy"), None, f"features: file {tmp_path}/no.npy does not exist. Check the path and the host."),
        (str(tmp_path / "bad.npy"), None, f"features: {tmp_path}/bad.npy is no complete .npy file of numbers ("),
        (str(tmp_path / "two.npz"), None, f"features: {tmp_path}/two.npz holds no single array with a, b; one with a row"),
    ):  # fmt: skip
        with pytest.raises(ModelError) as raised:
            helpers.from_numpy(context(), features, labels)
        assert str(raised.value).startswith(told)


def save_images(
    folder, kinds=("rgb.png", "rgba.png", "grey.png", "b.jpg", "c.bmp", "d.gif", "grey_alpha.PNG")
):
    """A red image of each kind and another size; the left half of what has alpha is transparent."""
    folder.mkdir(parents=True)
    with tf.Graph().as_default(), tf1.Session() as session:
        for number, kind in enumerate(kinds):
            channels = {"rgba.png": 4, "grey.png": 1, "grey_alpha.PNG": 2}.get(kind, 3)
            pixels = np.zeros([20 + number, 30 - number, channels], np.uint8)
            pixels[..., 0] = 255
            if channels in (2, 4):
                pixels[:, 10:, -1] = 255
            path = folder / kind
            if kind.endswith("jpg"):
                path.write_bytes(session.run(tf.io.encode_jpeg(pixels, quality=100)))
            elif kind.endswith("bmp"):
                path.write_bytes(bmp(pixels))
            elif kind.endswith("gif"):
                path.write_bytes(GIF)
            else:
                path.write_bytes(session.run(tf.io.encode_png(pixels)))


def bmp(pixels):
    """24 bits a pixel, bottom row first, rows padded to four bytes."""
    height, width, _ = pixels.shape
    rows = b"".join(row[:, ::-1].tobytes() + bytes(-3 * width % 4) for row in pixels[::-1])
    return struct.pack("<2sIIIIiiHHIIiiII", b"BM", 54 + len(rows), 0, 54, 40, width, height, 1, 24, 0, len(rows), 0, 0, 0, 0) + rows  # fmt: skip


# One red pixel.
GIF = b"GIF89a" + bytes.fromhex("01000100800000ff0000ff00002c00000000010001000002024401003b")


def test_images_of_all_kinds_and_sizes_become_rgb(tmp_path):
    save_images(tmp_path / "red")
    (tmp_path / "red" / "notes.txt").write_text("no image")
    (tmp_path / ".hidden").mkdir()
    ((images, labels),) = batches(
        lambda: helpers.from_image_folder(context("eval", 9), str(tmp_path), (8, 10), background=0)
    )
    assert images.shape == (7, 8, 10, 3) and images.dtype == np.float32 and labels.tolist() == [0] * 7
    for name, image in zip(["b", "c", "d", "grey", "grey_alpha", "rgb", "rgba"], images, strict=True):
        is_grey = "grey" in name
        assert image.min() >= 0 and image.max() <= 1
        np.testing.assert_allclose(
            image[:, -3:], np.broadcast_to([1, is_grey, is_grey], [8, 3, 3]), atol=0.02, err_msg=name
        )
        if name in ("rgba", "grey_alpha"):
            np.testing.assert_allclose(image[:, :2], 0, atol=0.02, err_msg=name)
    ((images, _),) = batches(
        lambda: helpers.from_image_folder(context("eval", 9), str(tmp_path), (8, 10), dtype="uint8")
    )
    assert (
        images.dtype == np.uint8
        and (images[-1][:, :2] == 255).all()
        and (images[-1][:, -3:] == [255, 0, 0]).all()
    )


def write_classes(folder, sizes):
    """Images whose only color is their number."""
    with tf.Graph().as_default(), tf1.Session() as session:
        pixels = tf1.placeholder(tf.uint8, [4, 4, 3])
        encoded = tf.io.encode_png(pixels)
        for number in range(sum(sizes.values())):
            name = next(name for i, name in enumerate(sizes) if number < sum(list(sizes.values())[: i + 1]))
            (folder / name).mkdir(exist_ok=True)
            content = session.run(encoded, {pixels: np.full([4, 4, 3], number)})
            (folder / name / f"{number:03}.png").write_bytes(content)


def numbers_in(found):
    return [int(image[0, 0, 0]) for images, _ in found for image in images]


def test_images_are_divided_among_workers_and_between_training_and_validation(tmp_path):
    write_classes(tmp_path, {"zebra": 25, "ant": 15})
    assert helpers.class_names(str(tmp_path)) == ["ant", "zebra"]

    def read(where, **options):
        return helpers.from_image_folder(
            where, str(tmp_path), (4, 4), dtype="uint8", validation_split=0.25, **options
        )

    def make():
        parts = [read(context(shard=k, of=3), repeat=False) for k in range(3)]
        return [*parts, read(context("eval")), read(context("eval")), read(context(), repeat=False)]

    *parts, held_out, again, whole = batches(make)
    training = [number for part in parts for number in numbers_in(part)]
    assert sorted(training + numbers_in(held_out)) == list(range(40))
    assert 4 <= len(numbers_in(held_out)) <= 18 and numbers_in(held_out) == numbers_in(again)
    assert sorted(training) == sorted(numbers_in(whole)) != numbers_in(whole)
    for images, labels in [batch for part in (*parts, held_out) for batch in part]:
        assert (labels == (images[:, 0, 0, 0] < 25)).all()


def test_a_broken_image_is_named(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("ps_train"), "propagate", True)
    save_images(tmp_path / "a b")
    whole = (tmp_path / "a b" / "rgb.png").read_bytes()
    for content, told in (
        (whole[: len(whole) // 2], "it is no complete image of its kind"),
        (b"", "it is empty; an image is expected"),
        (b"<html>", "it begins with b'<html>' and is no PNG, JPEG, BMP or GIF"),
    ):
        path = tmp_path / "a b" / "e.png"
        path.write_bytes(content)
        with pytest.raises(ModelError) as raised:
            batches(lambda: helpers.from_image_folder(context(), str(tmp_path), (8, 8)), 9)
        assert str(raised.value) == f"{path}: {told}. {broken.ADVICE}"
        caplog.clear()
        found = batches(
            lambda: helpers.from_image_folder(
                context(batch_size=99), str(tmp_path), (8, 8), repeat=2, on_broken="skip"
            )
        )
        assert len(found[0][1]) == 14
        assert [line for line in caplog.messages if "left out" in line] == [
            f"input: left out {path}: {told} (1 so far)"
        ]


def test_wrong_image_folders(tmp_path):
    save_images(tmp_path / "some" / "class", ["rgb.png"])
    (tmp_path / "some" / "none").mkdir()
    (tmp_path / "flat").mkdir()
    split = {"directory": str(tmp_path / "good"), "validation_split": 1e-9}
    save_images(tmp_path / "good" / "class", ["rgb.png"])
    for arguments, told in (
        ({"directory": str(tmp_path / "no")}, f"Image directory {tmp_path}/no does not exist. Expected is a directory with a"),
        ({"directory": str(tmp_path / "flat")}, f"Image directory {tmp_path}/flat has no folder in it. Expected is one for each"),
        ({"directory": str(tmp_path / "some")}, f"Class folder {tmp_path}/some/none has no image in it; .png, .jpg,"),
        ({**split, "context": context("eval")}, "validation_split=1e-09 leaves no image of"),
        ({**split, "validation_split": 1}, "validation_split=1 is out of range; 0 to 1 is expected."),
        ({**split, "image_size": 8}, "image_size=8; (height, width) in pixels is expected."),
        ({**split, "dtype": "int8"}, "dtype='int8'; 'float32' or 'uint8' is expected."),
        ({**split, "shard_by": "file"}, "shard_by='file' is unknown; 'image' or 'none' is expected."),
    ):  # fmt: skip
        with pytest.raises(ModelError) as raised:
            helpers.from_image_folder(**{"context": context(), **arguments})
        assert str(raised.value).startswith(told)


def test_pieces_of_a_fixed_part_are_each_read_once_in_a_pass():
    of_all = batches(lambda: [context(shard=k, of=3).pieces(10, repeat=2).batch(100) for k in range(3)])
    numbers = [list(np.concatenate(found)) for found in of_all]
    assert sorted(sum(numbers, [])) == sorted([*range(10), *range(10)])
    assert [set(found) for found in numbers] == [{0, 3, 6, 9}, {1, 4, 7}, {2, 5, 8}]
    in_order = batches(lambda: context("eval").pieces(5).batch(100))
    assert list(in_order[0]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("count", [-1, True, 2.0, None])
def test_a_wrong_number_of_pieces(count):
    with pytest.raises(ModelError, match=r"context\.pieces\(.*\): a number of pieces is expected, from 0\."):
        context().pieces(count)
    with pytest.raises(ModelError, match=r"context\.pieces\(repeat=0\): True \(for ever\), False"):
        context().pieces(3, repeat=0)
