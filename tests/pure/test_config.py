"""`ps_train.config`: exact messages, parameters that parse and print back, and that the value stays as it is."""

import copy
import dataclasses
import json
import os
import pickle
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps_train.config import TrainConfig
from ps_train.errors import UsageError
from ps_train.params import Params, WatchedParams, format_model_params, parse_model_params

FUZZ_EXAMPLES = int(os.environ.get("PS_TRAIN_FUZZ_EXAMPLES", "60"))


def test_the_defaults_are_valid():
    assert TrainConfig().problems(num_workers=1) == []
    assert TrainConfig().as_flags() == []


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"batch_size": 0}, "--batch_size=0 is out of range. Expected a whole number from 1."),
        ({"train_steps": 0}, "--train_steps=0 is out of range. Expected a whole number from 1."),
        ({"eval_steps": -1}, "--eval_steps=-1 is out of range. Expected a whole number from 1."),
        (
            {"keep_checkpoint_max": -1},
            "--keep_checkpoint_max=-1 is out of range. Expected a whole number from 0.",
        ),
        (
            {"save_checkpoint_steps": 0},
            "--save_checkpoint_steps=0 is out of range. Expected a whole number from 1.",
        ),
        (
            {"save_checkpoint_secs": 0.0},
            "--save_checkpoint_secs=0 is not a time to wait. Expected a number of seconds above 0.",
        ),
        (
            {"peer_timeout_secs": float("inf")},
            "--peer_timeout_secs=inf is not a time to wait. Expected a number of seconds above 0.",
        ),
        (
            {"startup_timeout_secs": float("nan")},
            "--startup_timeout_secs=nan is not a time to wait. Expected a number of seconds above 0.",
        ),
        ({"seed": 2**31}, "--seed=2147483648 is out of range. Expected a whole number from 0 to 2147483647."),
        ({"pack_bytes": "4k"}, "--pack_bytes=4k is not a size. Expected a whole number of bytes, or auto."),
        (
            {"max_staleness": 0, "update": "sync"},
            "--max_staleness is for --update=async: in sync every gradient is of the newest variables. Leave it out.",
        ),
        ({"max_staleness": -1}, "--max_staleness=-1 is out of range. Expected a whole number from 0."),
        ({"warmup_steps": -1}, "--warmup_steps=-1 is out of range. Expected a whole number from 0."),
        (
            {"update": "allreduce", "wire_dtype": "int8"},
            "--wire_dtype is not for --update=allreduce, where each worker has all variables and takes part in every step. "
            "Leave it out.",
        ),
        (
            {"update": "allreduce", "input": "workqueue"},
            "--input=workqueue is not for --update=allreduce: the queue is on a ps, and there is none. Leave it out: each worker "
            "reads a fixed part.",
        ),
        (
            {"update": "allreduce", "on_nan": "skip"},
            "--on_nan=skip is not for --update=allreduce: the others wait for a gradient of each worker. Take stop or ignore.",
        ),
        ({"towers": 0}, "--towers=0 is out of range. Expected a whole number from 1."),
        (
            {"gpus": "0;1"},
            "--gpus=0;1 is no list of GPUs. Expected numbers with commas, such as 0,1, or none.",
        ),
        (
            {"gpu_memory_fraction": 1.5},
            "--gpu_memory_fraction=1.5 is no part of a GPU's memory. Expected a number above 0, up to 1.",
        ),
        ({"scale_rate": "cubic"}, "--scale_rate=cubic is unknown. Expected none, linear, sqrt."),
        (
            {"prefetch": True, "update": "sync"},
            "--prefetch has no meaning in sync, where a step's variables exist when the step before is over. Leave it out, "
            "or train with --update=async.",
        ),
        ({"local_steps": 0}, "--local_steps=0 is out of range. Expected a whole number from 1."),
        (
            {"local_steps": 2, "prefetch": True},
            "--prefetch has no meaning with --local_steps=2, where a worker pulls once for so many batches. Leave one out.",
        ),
        (
            {"local_steps": 2, "accumulate_steps": 3},
            "--local_steps=2 and --accumulate_steps=3 exclude one another: a worker trains with each batch, or adds up their "
            "gradients. Leave one out; --batch_size makes a batch larger.",
        ),
        (
            {"autotune": True, "profile_steps": 3},
            "--autotune changes how the steps go that --profile_steps (or bench) measures. Leave out one of the two: profile with "
            "the flags that a run with --autotune has logged.",
        ),
        (
            {"local_steps": 8, "profile_steps": 3},
            "--local_steps=8 makes 8 runs of the graph a step, of which --profile_steps (or bench) traces one. Leave out one of "
            "the two: without --local_steps it tells where a batch's time goes.",
        ),
        (
            {"topk": 0.0},
            "--topk=0 is not a part of a gradient's elements. Expected a number above 0, up to 1 for all.",
        ),
        (
            {"topk": float("nan")},
            "--topk=nan is not a part of a gradient's elements. Expected a number above 0, up to 1 for all.",
        ),
        ({"fuse_bytes": "-1"}, "--fuse_bytes=-1 is not a size. Expected a whole number of bytes, or auto."),
        ({"pack_bytes": None}, "--pack_bytes= is not a size. Expected a whole number of bytes, or auto."),
        ({"input": "queue"}, "--input=queue is unknown. Expected shard, workqueue."),
        ({"update": "asnc"}, "--update=asnc is not an update rule. Expected async, sync or allreduce."),
        (
            {"replicas_to_aggregate": 1},
            "--replicas_to_aggregate=1 has no meaning in async, where each gradient is applied by itself. "
            "Add --update=sync or leave it out.",
        ),
        (
            {"update": "sync", "replicas_to_aggregate": 3},
            "--replicas_to_aggregate=3 is more than the 2 workers: an update would wait for gradients that "
            "no worker computes. Expected 1 to 2.",
        ),
    ],
)
def test_a_value_out_of_range(settings, problem):
    assert TrainConfig(**settings).problems(num_workers=2) == [problem]


def test_all_problems_are_found():
    assert TrainConfig(batch_size=0, seed=-1).problems() == [
        "--batch_size=0 is out of range. Expected a whole number from 1.",
        "--seed=-1 is out of range. Expected a whole number from 0 to 2147483647.",
    ]


@pytest.mark.parametrize("name", ["train_dir", "log_dir", "report_file"])
def test_a_url_is_no_path(name):
    assert TrainConfig(**{name: "gs://bucket/run"}).problems() == [
        f"--{name}=gs://bucket/run is a URL. Expected a path that this host can see, such as one on a mount of that "
        "storage."
    ]
    for path in ("runs/a", "/a:b//c", "a/b://c", ""):
        assert TrainConfig(**{name: path}).problems() == []


def test_without_the_number_of_workers_the_aggregate_is_not_judged():
    assert TrainConfig(update="sync", replicas_to_aggregate=99).problems() == []


def test_defaults_that_depend_on_other_values():
    assert TrainConfig().checkpoint_secs == 600
    assert TrainConfig(save_checkpoint_steps=10).checkpoint_secs is None
    assert TrainConfig(save_checkpoint_steps=10, save_checkpoint_secs=5).checkpoint_secs == 5


def test_params_are_parsed_in_order():
    params = parse_model_params(
        " units = 64 ,rate=1e-3,half=.5,neg=-2,name=a:b=c,on=True,off=false,none=,id=1_0 "
    )
    assert list(params.items()) == [
        ("units", 64),
        ("rate", 0.001),
        ("half", 0.5),
        ("neg", -2),
        ("name", "a:b=c"),
        ("on", True),
        ("off", False),
        ("none", ""),
        ("id", "1_0"),
    ]
    assert type(params["units"]) is int and type(params["rate"]) is float
    assert parse_model_params("") == parse_model_params(None) == parse_model_params(" ") == {}


def test_params_that_cannot_be_parsed():
    with pytest.raises(UsageError) as caught:
        parse_model_params("hidden=10,20,a=1,=2,a=3,b c=4,")
    assert str(caught.value).splitlines() == [
        "--model_params has '20', which has no '='. Expected key=value,key=value; a value cannot contain a comma.",
        "--model_params has the key ''. Expected a letter or '_' and then letters, digits, '_', '.' or '-'.",
        "--model_params has the key 'a' twice. Expected each key once.",
        "--model_params has the key 'b c'. Expected a letter or '_' and then letters, digits, '_', '.' or '-'.",
        "--model_params has '', which has no '='. Expected key=value,key=value; a value cannot contain a comma.",
    ]


def test_a_config_is_a_value():
    config = TrainConfig(model_params=Params(b=1, a="x"))
    assert {config: 1}[TrainConfig(model_params=Params(a="x", b=1))] == 1
    assert pickle.loads(pickle.dumps(config)) == copy.deepcopy(config) == config
    assert json.loads(json.dumps(dataclasses.asdict(config)))["model_params"] == {"b": 1, "a": "x"}
    with pytest.raises(AttributeError):
        config.batch_size = 1


@pytest.mark.parametrize(
    "change",
    [
        lambda params: params.update(a=2),
        lambda params: params.pop("a"),
        lambda params: params.clear(),
        lambda params: params.setdefault("b", 1),
        lambda params: params.__setitem__("a", 2),
        lambda params: params.__delitem__("a"),
        lambda params: params.__ior__({"a": 2}),
    ],
)
def test_params_cannot_be_changed(change):
    params = Params(a=1)
    with pytest.raises(TypeError, match="model_params cannot be changed"):
        change(params)
    assert params == {"a": 1}


def unread(use):
    params = WatchedParams(units=1, rate=2)
    use(params)
    return [line.split("'")[1] for line in params.unread()]


def test_params_that_nobody_reads():
    assert unread(lambda params: None) == ["units", "rate"]
    assert unread(lambda params: params["units"]) == ["rate"]
    assert unread(lambda params: params.get("units") or "rate" in params) == ["rate"]
    assert unread(lambda params: (params.get("units"), params.get("rate"))) == []
    for look in (len, bool, repr, hash, lambda params: params == {}):
        assert unread(look) == ["units", "rate"], look


@pytest.mark.parametrize(
    "use",
    [
        dict, list, copy.copy, copy.deepcopy, pickle.dumps, json.dumps,
        lambda params: {**params},
        lambda params: types.SimpleNamespace(**params),
        lambda params: {} | params,
        lambda params: params | {},
        lambda params: {}.update(params),
        lambda params: params.items(),
    ],
)  # fmt: skip
def test_params_that_are_passed_on_whole_count_as_read(use):
    assert unread(use) == []


def test_a_param_that_nobody_reads_is_told_with_the_one_that_was_meant():
    params = WatchedParams(lerning_rate=1, other=2)
    assert params.get("learning_rate", 0.1) == 0.1
    assert params.unread() == [
        "--model_params has 'lerning_rate', which was not read while the graph was built. Did you mean learning_rate?",
        "--model_params has 'other', which was not read while the graph was built. Read were: learning_rate.",
    ]


@settings(max_examples=FUZZ_EXAMPLES, deadline=None)
@given(st.one_of(st.text(max_size=40), st.text("ab=,1.e-+ tru:\n", max_size=40)))
def test_fuzz_params(text):
    try:
        params = parse_model_params(text)
    except UsageError as error:
        assert str(error)
        return
    assert parse_model_params(format_model_params(params)) == params


@pytest.mark.parametrize("name, shown", [("r[1] x", "[ ]"), ("a*b?", "* ?"), ("back\\slash", "\\")])
def test_a_train_dir_that_tensorflow_takes_for_a_pattern_is_refused(name, shown):
    assert TrainConfig(train_dir=name).problems() == [
        f"--train_dir={name} has {shown} in its name: TensorFlow would save there and not restore from it. "
        "Expected a name without [ ] * ? and backslash."
    ]
    assert not TrainConfig(train_dir="plain ü/with blank").problems()


@pytest.mark.parametrize("name", ["train_dir", "log_dir", "report_file"])
def test_a_path_that_is_no_utf8(name):
    (line,) = TrainConfig(**{name: "runs/bad\udcb0dir"}).problems()
    assert line == (
        f"--{name}=runs/bad\\xb0dir is no UTF-8, which TensorFlow's paths are. Expected a path in that encoding."
    )
