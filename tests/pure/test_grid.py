"""`--grid`: axes, values with commas, points and their names, and what is said of a grid that is none."""

import pytest

from ps_train.errors import UsageError
from ps_train.experiment.grid import Point, axes_of, make_points, parse_grid
from ps_train.params import parse_model_params


def problems(*texts):
    with pytest.raises(UsageError) as caught:
        make_points(texts)
    return str(caught.value).splitlines()


def test_every_combination_the_last_axis_fastest():
    points = make_points(["update=async,sync  num_workers=1,2,4"])
    assert [point.text for point in points] == [
        f"update={update} num_workers={number}" for update in ("async", "sync") for number in (1, 2, 4)
    ]
    assert points[4].as_flags() == ["--update=sync", "--num_workers=2"]
    assert points[4].name == "update=sync,num_workers=2"
    assert (points[4].value("update"), points[4].value("seed")) == ("sync", None)


def test_several_grids_are_put_together():
    points = make_points(["update=async,sync", "update=sync replicas_to_aggregate=2"])
    assert [point.text for point in points] == [
        "update=async",
        "update=sync",
        "update=sync replicas_to_aggregate=2",
    ]
    assert axes_of(points) == ["update", "replicas_to_aggregate"]


def test_no_grid_is_one_point():
    (point,) = make_points([])
    assert (point.as_flags(), point.text, point.name) == ([], "(no axis)", "run")


@pytest.mark.parametrize(
    "text, values",
    [
        ("gpus={0,1},none", ("0,1", "none")),
        ("model={a b.py},c.py", ("a b.py", "c.py")),
        ("model_params={a=1,b=2},{a=3}", ("a=1,b=2", "a=3")),
        ("model=x@y:z;w=1,b", ("x@y:z;w=1", "b")),
        ("gpus={}", ("",)),
        ("model={{a},b}", ("{a},b",)),
    ],
)
def test_values(text, values):
    assert tuple(parse_grid(text).values()) == (values,)
    (point, *_) = make_points([text])
    assert make_points([point.text]) == [point], "the text of a point is a grid of it"


def test_keys_of_model_params_are_axes_and_other_keys_stay():
    points = make_points(["model_params.hidden=64,128 model_params.rate=0.1"])
    (flag,) = points[1].as_flags("name=a:b=c,hidden=3")
    assert parse_model_params(flag.removeprefix("--model_params=")) == {
        "name": "a:b=c",
        "hidden": 128,
        "rate": 0.1,
    }
    whole = make_points(["model_params={a=1,b=2} model_params.b=3"])[0]
    assert whole.as_flags("c=9") == ["--model_params=a=1,b=3"]


def test_names_are_safe_for_files_and_differ():
    texts = ["a/b@2.py", "a/b_2.py", "a b", "a_b", "a,b", "x" * 300, "x" * 301, "é", "-5:00000"]
    names = [Point((("model", text),)).name for text in texts]
    assert len(set(names)) == len(names) and max(map(len, names)) < 110
    assert not set("".join(names)) & set("/@[]*?\\% :")
    assert names[3] == "model=a_b"
    # A comma in a value is not the one between two axes.
    assert Point((("a", "1,b=2"),)).name != Point((("a", "1"), ("b", "2"))).name


HOW = (
    "Expected flag=value,value with a blank between two flags; a value with a comma or a blank goes in braces, as "
    "gpus={0,1},none."
)


@pytest.mark.parametrize(
    "text, message",
    [
        ("update", f"--grid has 'update', which is no axis. {HOW}"),
        ("=a", f"--grid has '=a', which is no axis. {HOW}"),
        ("--update=sync", f"--grid has '--update=sync', which is no axis. {HOW}"),
        ("update=", f"--grid has 'update=', where a value is empty. {HOW}"),
        ("update=sync,", f"--grid has 'update=sync,', where a value is empty. {HOW}"),
        ("update=a,,b", f"--grid has 'update=a,,b', where a value is empty. {HOW}"),
        ("gpus={0,1", f"--grid has 'gpus={{0,1', whose braces do not enclose a value. {HOW}"),
        ("gpus={0}1", f"--grid has 'gpus={{0}}1', whose braces do not enclose a value. {HOW}"),
        ("gpus=0},1", f"--grid has 'gpus=0}},1', whose braces do not enclose a value. {HOW}"),
        ("", f"--grid= has no axis. {HOW}"),
        ("a=1 a=2", "--grid has the axis a twice in 'a=1 a=2'. Expected each once."),
        ("a=1,1", "--grid has a value of a twice in 'a=1,1'. Expected each once."),
    ],
)
def test_what_is_no_grid(text, message):
    assert problems(text) == [message]


def test_all_problems_are_told_and_points_are_had_once():
    assert len(problems("a", "b=1 c= d")) == 3
    assert problems("a=1,2", "a=2") == ["--grid names a=2 twice. Expected each point once."]
