"""Profiles as text."""

from test_verdict import MB, ps, worker

from ps_train.profile_table import bars, lines


def test_the_whole_text():
    profile = worker(
        input=10, compute=40, pull=20, push=10, update=5, wait=5, ps_figures=ps(mb=25, link=1234)
    )
    assert lines([profile]) == [
        "worker    steps/s  ms/step  input  compute  pull  push  update  wait  other        CPU",
        "worker:0     10.0    100.0   10.0     40.0  20.0  10.0     5.0   5.0   10.0  1.00 of 4",
        "line             MB pulled  pushed  messages  MB/s pull  alone  MB/s push  alone  CPU of ps",
        "ps:0 - worker:0         25      25         8       1250   1234       1250   1234  0.10 of 4",
        "worker:0 |iiiiii########################<<<<<<<<<<<<>>>>>>uuu...      | 100.0 ms",
        "          i input  # compute  < pull  > push  u update  . wait",
    ]


def test_bars_are_as_long_as_their_steps():
    short = worker("worker:1", compute=100)
    short = short.__class__(
        **{**vars(short), "step_secs": 0.05, "parts": {**short.parts, "compute": 0.05, "other": 0.0}}
    )
    first, second, _ = bars([worker(compute=100), short])
    assert first.count("#") == 60 and second.count("#") == 30


def test_what_is_not_known():
    figures = ps()
    unknown = figures.__class__(figures.traffic)
    profile = worker(ps_figures=unknown)
    profile = profile.__class__(**{**vars(profile), "is_probe_alone": False})
    text = lines([profile])
    assert text[3].split()[-5:] == ["1000", "?", "1000", "?", "?"]
    assert text[-1].startswith("Others trained while worker:0 probed")
    assert MB == 1e6


def test_a_colocated_ps():
    settings = {"is_colocated": True}
    text = lines([worker(settings=settings)])
    assert text[-1] == "CPU of ps is that of its process, the worker's work in it included."
    alone = lines([worker(ps_figures={}, settings=settings)])
    assert len(alone) == 4 and not any("CPU of ps" in line for line in alone)
