"""The user's model: finding, importing, checking and calling it, and what each mistake says."""

import functools
import os
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ps_train import model as model_lib
from ps_train.errors import ModelError, UsageError
from ps_train.model import InputContext, Model, ModelSpec

FUZZ_EXAMPLES = int(os.environ.get("PS_TRAIN_FUZZ_EXAMPLES", "60"))
GOOD = """
def input_fn(context):
    return context

def model_fn(features, labels, mode, params):
    return (features, labels, mode, params)
"""


class FakeTensor:
    """What ModelSpec looks at in a tensor."""

    graph = None

    def __init__(self, shape=(), is_floating=True):
        self.shape = FakeShape(shape)
        self.dtype = SimpleNamespace(name="float32" if is_floating else "int32", is_floating=is_floating)


class FakeShape(tuple):
    @property
    def rank(self):
        return len(self)


class FakeOptimizer:
    def compute_gradients(self): ...
    def apply_gradients(self): ...


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a model file, in a directory of its own that is also the current one; gives its path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write_file(text, name="mine.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
        return str(path)

    yield write_file
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in str(getattr(module, "__file__", "")):
            del sys.modules[name]


def error_of(function, *args):
    with pytest.raises(ModelError) as caught:
        function(*args)
    message = str(caught.value)
    assert "\n" not in message
    return message


def untyped(value) -> Any:
    """A value of a wrong type on purpose."""
    return value


def make_model(model_fn=None, input_fn=None):
    return Model(input_fn=input_fn, model_fn=model_fn, name="test", source=__file__)


# Loading.


def test_loads_a_file_by_absolute_and_relative_path(write):
    path = write(GOOD)
    for spelling in (path, "mine.py", "./mine.py"):
        model = model_lib.load_model(spelling)
        assert (model.name, model.source) == ("mine", path)
        assert model.input_fn("context") == "context"


def test_a_file_imports_its_neighbours_and_hides_no_module(write):
    write("ANSWER = 42\n", "deep/neighbour_of_mine.py")
    path = write("from neighbour_of_mine import ANSWER\n" + GOOD, "deep/json.py")
    model = model_lib.load_model(path)
    assert model.model_fn.__globals__["ANSWER"] == 42
    import json

    assert hasattr(json, "loads")
    assert sys.modules[model.model_fn.__module__].__file__ == path


def test_loads_a_dotted_module(write):
    write(GOOD, "package_of_mine/model_of_mine.py")
    model = model_lib.load_model("package_of_mine.model_of_mine")
    assert model.name == "package_of_mine.model_of_mine"
    assert model.source.endswith("model_of_mine.py")


def test_loads_the_builtin_model():
    assert model_lib.load_model("ps_train.builtin_model").input_fn.__name__ == "input_fn"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = (\n", "mine.py:1 has a syntax error: '(' was never closed."),
        (
            "import package_that_is_nowhere\n",
            f"mine.py:1 imports package_that_is_nowhere, which is not installed here. Install it for {sys.executable}, "
            "or put it beside the model file.",
        ),
        ("\n1 / 0\n", "import in mine.py:2 raised ZeroDivisionError: division by zero"),
        (
            "import sys\nsys.exit(0)\n",
            "mine.py:2 ended the program while being imported. Put what starts a run under "
            'if __name__ == "__main__": and leave only definitions outside it.',
        ),
        (
            "def input_fun(context): ...\ndef model_fn(features, labels): ...\n",
            "mine.py does not define input_fn: its functions are input_fun, model_fn. Did you mean input_fun?",
        ),
        (
            "import os\n",
            "mine.py does not define input_fn: it defines no functions. "
            "Define it as input_fn(context), returning a tf.data.Dataset of (features, labels).",
        ),
        (
            "def input_fn(context): ...\nmodel_fn = 3\n",
            "model_fn in mine.py is an int; a function is expected. "
            "Define it as model_fn(features, labels, mode, params), returning a ps_train.ModelSpec.",
        ),
        (
            "def input_fn(): ...\ndef model_fn(features, labels): ...\n",
            "input_fn() in mine.py:1 cannot be called with one argument. "
            "Define it as input_fn(context), returning a tf.data.Dataset of (features, labels).",
        ),
        (
            "def input_fn(context): ...\n\ndef model_fn(features, labels, mode, config): ...\n",
            "model_fn(features, labels, mode, config) in mine.py:3 requires config, which ps_train does not pass. "
            "Define it as model_fn(features, labels, mode, params), returning a ps_train.ModelSpec.",
        ),
        (
            "def input_fn(context): ...\ndef model_fn(mode, params): ...\n",
            "model_fn(mode, params) in mine.py:2 takes no features. "
            "Define it as model_fn(features, labels, mode, params), returning a ps_train.ModelSpec.",
        ),
    ],
)
def test_a_bad_file_is_one_line_with_the_place(write, text, expected):
    assert error_of(model_lib.load_model, write(text)) == expected


@pytest.mark.parametrize("text", ["x = (\n", "import nowhere_at_all\n", "1 / 0\n", "raise SystemExit\n"])
def test_a_failed_import_keeps_its_cause_for_debug(write, text):
    for name in (write(text), "mine"):
        with pytest.raises(ModelError) as caught:
            model_lib.load_model(name)
        assert caught.value.__cause__ is not None


def test_a_failed_import_leaves_no_half_made_module(write):
    before = set(sys.modules)
    error_of(model_lib.load_model, write("1 / 0\n"))
    assert set(sys.modules) == before


def test_an_error_in_a_neighbour_names_the_neighbour(write):
    write("import os\nos.no_such_function()\n", "neighbour_with_error.py")
    message = error_of(model_lib.load_model, write("import neighbour_with_error\n" + GOOD))
    assert message.startswith("import in neighbour_with_error.py:2 raised AttributeError: module 'os' has no")


@pytest.mark.parametrize(
    "line", ["from pytest.x import y", "from pytest import x", "import pytest; pytest.x"]
)
def test_a_neighbour_that_hides_a_package(write, monkeypatch, line):
    monkeypatch.delitem(sys.modules, "pytest")
    path = write("", "pytest.py")
    message = error_of(model_lib.load_model, write(line + "\n" + GOOD))
    assert re.fullmatch(
        rf"import in mine\.py:1 raised \w+: The file {path} hides the installed package pytest. Rename it.",
        message,
    )


def test_what_is_not_there(write):
    path = write(GOOD)
    directory = path.removesuffix("/mine.py")
    assert error_of(model_lib.load_model, "mina.py") == (
        f"--model=mina.py does not exist: there is no such file in {directory}. Did you mean mine.py?"
    )
    assert error_of(model_lib.load_model, "nowhere/mine.py") == (
        f"--model=nowhere/mine.py does not exist: there is no directory {directory}/nowhere. "
        "Check the path and the host."
    )
    assert error_of(model_lib.load_model, directory) == (
        f"--model={directory} is a directory; a .py file that defines input_fn and model_fn is expected."
    )
    assert error_of(model_lib.load_model, "mine_is_not_here") == (
        "--model=mine_is_not_here is no module that Python can find from here. A file's path ends in .py."
    )
    write(GOOD, "models_of_mine/cnn.py")
    assert error_of(model_lib.load_model, "models_of_mine.rnn").startswith(
        "--model=models_of_mine.rnn is no module"
    )


def test_a_dotted_module_that_is_a_file_elsewhere_on_the_path(write, monkeypatch):
    write(GOOD, "sub/mine.py")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    write("1 / 0\n", "sub/__init__.py")
    message = error_of(model_lib.load_model, "sub.mine")
    assert (
        message
        == "import of the package of --model=sub.mine in sub/__init__.py:1 raised ZeroDivisionError: "
        + ("division by zero")
    )


# Calling.


def test_model_fn_gets_what_it_accepts():
    spec = ModelSpec(loss=FakeTensor(), optimizer=FakeOptimizer())
    calls: list[Any] = []

    def call(model_fn, labels="y"):
        calls.clear()
        model_lib.call_model_fn(make_model(model_fn), "x", labels, "train", {"a": 1})
        return calls[0]

    def full(features, labels, mode, params):
        calls.append((features, labels, mode, params))
        return spec

    def other_names(x, y, params):
        calls.append((x, y, params))
        return spec

    def keywords(features, labels, **kwargs):
        calls.append((features, labels, kwargs))
        return spec

    def no_labels(features, mode):
        calls.append((features, mode))
        return spec

    def default_config(features, labels, mode, config=None):
        calls.append((features, labels, mode, config))
        return spec

    assert call(full) == ("x", "y", "train", {"a": 1})
    assert call(other_names) == ("x", "y", {"a": 1})
    assert call(keywords) == ("x", "y", {"mode": "train", "params": {"a": 1}})
    assert call(no_labels, labels=None) == ("x", "train")
    assert call(default_config) == ("x", "y", "train", None)
    assert "has no parameter for the labels" in error_of(call, no_labels)


def test_an_exception_in_model_fn_names_the_users_line_and_keeps_its_cause():
    def model_fn(features, labels):
        return re.compile("(")

    with pytest.raises(
        ModelError, match=r"model_fn in .*test_model\.py:\d+ raised error: missing \), unterm"
    ) as caught:
        model_lib.call_model_fn(make_model(model_fn), None, None, "train", {})
    line = model_fn.__code__.co_firstlineno + 1
    assert f"test_model.py:{line} raised" in str(caught.value)
    assert isinstance(caught.value.__cause__, re.error)


def test_our_own_errors_pass_through_unchanged():
    def input_fn(context):
        raise UsageError("Data directory d does not exist.")

    with pytest.raises(UsageError, match=r"^Data directory d does not exist\.$"):
        model_lib.call_input_fn(make_model(input_fn=input_fn), InputContext())


def test_a_keras_2_layer_is_answered_with_the_remedy():
    def model_fn(features, labels):
        raise AttributeError("`dense` is not available with Keras 3.")

    assert error_of(model_lib.call_model_fn, make_model(model_fn), None, None, "train", {}).endswith(
        "uses dense, a TensorFlow 1 layer that Keras 3 lacks. Run pip install tf_keras, and set "
        "TF_USE_LEGACY_KERAS=1 in the environment of every task."
    )


def test_a_long_multi_line_message_becomes_one_line():
    def model_fn(features, labels):
        raise ValueError('in user code:\n\n    File "x.py", line 3, in f\n\n    ValueError: rank\n')

    assert error_of(model_lib.call_model_fn, make_model(model_fn), None, None, "train", {}).endswith(
        "raised ValueError: rank"
    )

    def verbose(features, labels):
        raise ValueError("a\n" * 10000)

    assert len(error_of(model_lib.call_model_fn, make_model(verbose), None, None, "train", {})) < 800


def test_input_fn_must_return_a_dataset():
    for value, text in ((None, "None"), ((1, 2), "a tuple of 2"), (iter(()), "a tuple_iterator")):
        assert f"returned {text}; a tf.data.Dataset of (features, labels) is expected." in error_of(
            model_lib.call_input_fn, make_model(input_fn=lambda context, value=value: value), InputContext()
        )


def test_split_element():
    assert model_lib.split_element(("x", "y")) == ("x", "y")
    assert model_lib.split_element(({"a": 1}, "y")) == ({"a": 1}, "y")
    assert model_lib.split_element({"a": 1}) == ({"a": 1}, None)
    assert model_lib.split_element("x") == ("x", None)
    assert model_lib.split_element(("x",)) == ("x", None)
    assert "elements of 3 parts" in error_of(model_lib.split_element, (1, 2, 3))


# What model_fn returns.


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, "it returned None; a ps_train.ModelSpec is expected."),
        ((1, 2), "it returned a tuple of 2; a ps_train.ModelSpec is expected."),
        ({"loss": 1}, "it returned a dict; a ps_train.ModelSpec is expected."),
        (ModelSpec, "it returned the class ModelSpec; a ps_train.ModelSpec is expected. Call it:"),
        (ModelSpec(optimizer=FakeOptimizer()), "ModelSpec has no loss, which mode 'train' needs."),
        (ModelSpec(loss=0.5, optimizer=FakeOptimizer()), "ModelSpec.loss is a float; a scalar tensor"),
        (
            ModelSpec(loss=FakeTensor((8, 1)), optimizer=FakeOptimizer()),
            "ModelSpec.loss has shape (8, 1); a scalar",
        ),
        (
            ModelSpec(loss=FakeTensor((), False), optimizer=FakeOptimizer()),
            "ModelSpec.loss is of type int32;",
        ),
        (ModelSpec(loss=FakeTensor()), "ModelSpec has neither optimizer nor train_op"),
        (
            ModelSpec(loss=FakeTensor(), optimizer=FakeOptimizer(), train_op="op"),
            "ModelSpec has both optimizer and train_op; exactly one is expected.",
        ),
        (
            ModelSpec(loss=FakeTensor(), optimizer=FakeOptimizer),
            "ModelSpec.optimizer is the class FakeOptimizer;",
        ),
        (
            ModelSpec(loss=FakeTensor(), optimizer=SimpleNamespace(apply_gradients=1)),
            "ModelSpec.optimizer is a Keras optimizer; a TensorFlow 1 optimizer is expected.",
        ),
        (
            ModelSpec(loss=FakeTensor(), optimizer=FakeOptimizer(), metrics=untyped([1])),
            "ModelSpec.metrics is a list of 1; a dict is expected.",
        ),
        (
            ModelSpec(loss=FakeTensor(), optimizer=FakeOptimizer(), metrics=untyped({"accuracy": 1})),
            "ModelSpec.metrics['accuracy'] is an int; a pair (value, update_op) is expected.",
        ),
        (
            ModelSpec(loss=FakeTensor(), optimizer=FakeOptimizer(), training_hooks=untyped(None)),
            "ModelSpec.training_hooks is None; a list of SessionRunHooks is expected.",
        ),
    ],
)
def test_a_bad_result_says_what_is_wrong_and_what_is_expected(result, text):
    message = error_of(
        model_lib.call_model_fn, make_model(lambda features, labels: result), None, None, "train", {}
    )
    assert re.match(r"model_fn in .*test_model\.py:\d+: ", message)
    assert text in message


def test_a_bad_spec_is_told_with_the_line_that_made_it():
    def model_fn(features, labels):
        return ModelSpec(
            loss=FakeTensor(),
        )

    line = model_fn.__code__.co_firstlineno + 1
    message = error_of(model_lib.call_model_fn, make_model(model_fn), None, None, "train", {})
    assert f"test_model.py:{line}: ModelSpec has neither optimizer nor train_op" in message
    spec, same = ModelSpec(loss=1), ModelSpec(loss=1)
    assert spec == same and "made_at" not in repr(spec)


def test_a_bad_result_is_told_with_the_line_of_model_fn():
    def model_fn(features, labels):
        return {"loss": 1}

    class Callable:
        def __call__(self, features, labels): ...

    def wrapped(*args):
        return model_fn(*args)

    line = model_fn.__code__.co_firstlineno
    for function in (model_fn, functools.partial(model_fn), functools.wraps(model_fn)(wrapped)):
        message = error_of(model_lib.call_model_fn, make_model(function), None, None, "train", {})
        assert f"test_model.py:{line}: it returned a dict" in message
    line = Callable.__call__.__code__.co_firstlineno
    message = error_of(model_lib.call_model_fn, make_model(Callable()), None, None, "train", {})
    assert f"test_model.py:{line}: it returned None" in message
    message = error_of(model_lib.call_model_fn, make_model(dict), None, None, "train", {})
    assert "test_model.py raised TypeError" in message


def test_an_error_of_ours_in_model_fn_is_told_with_the_users_line():
    def model_fn(features, labels):
        raise ModelError("The optimizer is bad.")

    line = model_fn.__code__.co_firstlineno + 1
    message = error_of(model_lib.call_model_fn, make_model(model_fn), None, None, "train", {})
    assert re.fullmatch(rf"model_fn in .*test_model.py:{line}: The optimizer is bad\.", message)


def test_the_elements_of_the_dataset_are_told_with_the_line_of_input_fn():
    def input_fn(context):
        return SimpleNamespace(element_spec=(1, 2, 3))

    message = error_of(model_lib.call_input_fn, make_model(input_fn=input_fn), InputContext())
    line = input_fn.__code__.co_firstlineno
    assert re.match(rf"The dataset of input_fn in .*test_model.py:{line} has elements of 3 parts;", message)


def test_an_estimator_spec_is_converted():
    loss, hook = FakeTensor(), object()
    estimator_spec = SimpleNamespace(
        loss=loss, train_op="op", predictions="p", eval_metric_ops={"a": (1, 2)}, training_hooks=(hook,)
    )
    spec = model_lib.call_model_fn(
        make_model(lambda features, labels: estimator_spec), None, None, "train", {}
    )
    assert spec == ModelSpec(
        loss=loss, train_op="op", predictions="p", metrics={"a": (1, 2)}, training_hooks=(hook,)
    )


def test_what_each_mode_needs():
    assert ModelSpec(loss=FakeTensor()).validate("eval")
    assert ModelSpec(predictions="p").validate("predict")
    assert "ModelSpec has no predictions" in error_of(ModelSpec(loss=FakeTensor()).validate, "predict")
    assert "which mode 'eval' needs" in error_of(ModelSpec(predictions="p").validate, "eval")


# Seeds.


def test_worker_seeds_differ_and_never_change():
    seeds = [model_lib.worker_seed(seed, shard) for seed in range(20) for shard in range(20)]
    assert len(set(seeds)) == 400
    assert all(seed is not None and 0 <= seed < 2**31 for seed in seeds)
    assert [model_lib.worker_seed(7, shard) for shard in range(2)] == [431379789, 1406334329]
    assert model_lib.worker_seed(None, 3) is None


def test_the_module_needs_no_tensorflow():
    import subprocess

    code = "import sys, ps_train.model; sys.exit('tensorflow' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_the_models_files_mention(tmp_path, monkeypatch):
    (tmp_path / "mine_data.py").write_text("KEYS = ['near_by']\n")
    (tmp_path / "other_data.py").write_text("KEYS = ['elsewhere']\n")
    (tmp_path / "mine.py").write_text(
        "import mine_data, json  # unquoted\n"
        "def input_fn(context): return context.params['limit']\n"
        'def model_fn(features, labels, params): return params.get("rate")\n'
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    mine = model_lib.load_model(str(tmp_path / "mine.py"))
    asked = ("limit", "rate", "near_by", "elsewhere", "unquoted", "lim.t", "limi", "__main__")
    assert [word for word in asked if model_lib.mentions(mine, word)] == ["limit", "rate", "near_by"]
    del sys.modules["mine_data"]


TOKENS = ["(", ")", ":", "\n", "    ", "def ", "return ", "raise ", "import ", "lambda ", "*", ",", "=", "@", "#", '"', "\x00", "\x0c",
          "é", "\ufeff", "1", "_", "async ", "class ", "model_fn", "input_fn", "features", "%", "\\"]  # fmt: skip
EDITS = st.tuples(
    st.integers(0, len(GOOD)), st.integers(0, 20), st.sampled_from(TOKENS) | st.text(max_size=4)
)


@settings(
    max_examples=FUZZ_EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(EDITS, min_size=1, max_size=3))
def test_fuzz_model_file(write, edits):
    """A model, or a mistake in words: no other exception."""
    text = GOOD
    for place, length, inserted in edits:
        text = text[:place] + inserted + text[place + length :]
    path = write("")
    with open(path, "wb") as file:
        file.write(text.encode(errors="surrogatepass"))
    try:
        model_lib.load_model(path)
    except ModelError as error:
        assert str(error).strip()
