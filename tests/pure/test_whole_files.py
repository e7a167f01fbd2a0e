"""Files that are there whole or not at all, and what JSON does not have."""

import json
import math
import os

import pytest

from ps_train.errors import UsageError
from ps_train.whole_files import as_json, write_bytes, write_json, write_report


def test_nan_and_inf_are_null_wherever_they_are():
    value = {
        "loss": math.nan,
        "rows": [(1, math.inf), [-math.inf, 2.5]],
        "of": {"ps:0": {"rate": math.nan}},
        "n": None,
    }
    read = json.loads(as_json(value), parse_constant=lambda name: pytest.fail(name))
    assert read == {"loss": None, "rows": [[1, None], [None, 2.5]], "of": {"ps:0": {"rate": None}}, "n": None}


def test_what_cannot_be_written_leaves_what_was_there(tmp_path):
    path = str(tmp_path / "deep" / "a.json")
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    with pytest.raises(TypeError):
        write_bytes(path, "no bytes")
    assert os.listdir(tmp_path / "deep") == ["a.json"]
    with open(path) as file:
        assert json.load(file) == {"a": 1}


def test_a_report_of_a_command_that_cannot_be_written_is_the_users_to_mend(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UsageError, match=r"The report .*/file/r.json cannot be written: .* Choose another --report_file"
    ):
        write_report(str(tmp_path / "file" / "r.json"), {})
