"""The trial of transports: whose turn it is, what its times come to, and who follows whom. No TensorFlow runs here."""

import itertools
from types import SimpleNamespace

import pytest

from ps_train import autotune
from ps_train.autotune import LEAST_SECS, PLAIN, ROUNDS, TIMED_STEPS, WARM_STEPS, Setting, Trial, choose

PACKED = Setting(4096)
HALF = Setting(4096, "bfloat16")


def context(pack_bytes=4096, wire_dtype="float32", prefetch=False, autotune=True):
    return SimpleNamespace(
        pack_bytes=pack_bytes, wire_dtype=wire_dtype, prefetch=prefetch, autotune=autotune
    )  # fmt: skip


def names(**flags):
    return [setting.name for setting in autotune.settings(context(**flags))]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, ["packed", "plain"]),
        ({"pack_bytes": 0}, ["plain"]),
        ({"wire_dtype": "bfloat16"}, ["packed, bfloat16", "packed", "plain"]),
        ({"wire_dtype": "int8"}, ["packed, int8", "packed, bfloat16", "packed", "plain"]),
        ({"prefetch": True}, ["packed, prefetch", "packed", "plain"]),
        ({"wire_dtype": "float16", "pack_bytes": 0}, ["plain, float16", "plain"]),
        ({"wire_dtype": "int8", "prefetch": True, "autotune": False}, ["packed, int8, prefetch"]),
    ],
)
def test_only_what_the_flags_allow_is_tried_and_what_they_say_is_first(flags, expected):
    assert names(**flags) == expected


def test_a_setting_tells_the_flags_that_give_it():
    assert HALF.flags == "--pack_bytes=4096 --wire_dtype=bfloat16 --noprefetch"


class Steps:
    """A clock that only steps move: each takes what its setting takes, and what `more` adds for the step's number."""

    def __init__(self, settings, secs, more=lambda number: 0.0):
        self.now, self.number, self._secs, self._more = 0.0, 0, secs, more
        self.trial = Trial(settings, clock=lambda: self.now)

    def run(self, most=10**6):
        turns = []
        while not self.trial.is_over and self.number < most:
            turns.append(self.trial.current)
            secs = self._secs[self.trial.current] + self._more(self.number)
            self.now += secs
            self.number += 1
            self.trial.note(secs)
        return [setting for setting, _ in itertools.groupby(turns)]


def test_settings_take_turns_there_back_and_there_again():
    steps = Steps([HALF, PACKED, PLAIN], {HALF: 0.03, PACKED: 0.04, PLAIN: 0.05})
    assert steps.run() == [HALF, PACKED, PLAIN, PACKED, HALF, PACKED, PLAIN]
    assert steps.number == steps.trial.num_steps == 3 * ROUNDS * (WARM_STEPS + TIMED_STEPS)
    assert steps.trial.step_secs() == pytest.approx({HALF: 0.03, PACKED: 0.04, PLAIN: 0.05})
    assert steps.trial.current == HALF


def test_quick_steps_are_timed_for_a_while():
    steps = Steps([PACKED, PLAIN], {PACKED: 0.001, PLAIN: 0.001})
    steps.run()
    assert steps.now >= 2 * ROUNDS * LEAST_SECS


def test_slow_steps_are_few():
    steps = Steps([PACKED, PLAIN], {PACKED: 10.0, PLAIN: 10.0})
    steps.run()
    assert steps.number == 2 * ROUNDS * (1 + autotune.MIN_TIMES)


def test_neither_a_hiccup_nor_a_bad_turn_decides():
    turn = WARM_STEPS + TIMED_STEPS
    for more in (
        lambda number: 5.0 if number % 7 == 6 else 0.0,
        lambda number: 0.2 if number < turn else 0.0,
    ):
        steps = Steps([PACKED, PLAIN], {PACKED: 0.02, PLAIN: 0.03}, more)
        steps.run()
        assert steps.trial.step_secs() == pytest.approx({PACKED: 0.02, PLAIN: 0.03})


def test_what_gets_faster_for_all_favours_nobody_by_more_than_a_turn():
    per_step = 1 / 5000
    steps = Steps([PACKED, PLAIN], {PACKED: 0.1, PLAIN: 0.1}, lambda number: 0.05 - number * per_step)
    steps.run()
    found = steps.trial.step_secs()
    assert abs(found[PLAIN] - found[PACKED]) < 1.01 * per_step * (WARM_STEPS + TIMED_STEPS)


def test_a_turn_that_is_begun_anew_forgets_its_times():
    steps = Steps([PACKED, PLAIN], {PACKED: 0.1, PLAIN: 0.1}, lambda number: 0.1 if number < 20 else 0.0)
    steps.run(most=20)
    steps.trial.begin()
    assert steps.trial.step_secs() == {}
    steps.run()
    assert steps.trial.step_secs() == pytest.approx({PACKED: 0.1, PLAIN: 0.1})


def test_a_trial_that_is_cut_short_decides_by_what_it_has():
    steps = Steps([PACKED, PLAIN], {PACKED: 0.2, PLAIN: 0.1})
    steps.run(most=WARM_STEPS + autotune.MIN_TIMES - 1)
    assert choose(steps.trial.step_secs(), PACKED) == PACKED and steps.trial.step_secs() == {}
    steps.run(most=2 * WARM_STEPS + TIMED_STEPS + autotune.MIN_TIMES - 1)
    assert list(steps.trial.step_secs()) == [PACKED]
    steps.run(most=steps.number + 1)
    assert choose(steps.trial.step_secs(), PACKED) == PLAIN


@pytest.mark.parametrize(
    ("step_secs", "expected"),
    [
        ({HALF: 1.0, PACKED: 0.99, PLAIN: 1.3}, HALF),
        ({HALF: 1.0, PACKED: 0.97, PLAIN: 1.3}, PACKED),
        ({HALF: 1.0, PACKED: 0.97, PLAIN: 0.5}, PLAIN),
        ({PACKED: 0.1}, HALF),
        ({}, HALF),
    ],
)
def test_another_than_the_jobs_own_has_to_be_faster_by_a_margin(step_secs, expected):
    assert choose(step_secs, own=HALF) == expected


def test_the_table_tells_rates_ratios_and_how_much_turns_differ():
    assert autotune.table({HALF: [0.001, 0.002, 0.001], PLAIN: [0.002]}, kept=HALF) == [
        "  packed, bfloat16    1000.0 steps/s   1.00  (500.0-1000.0)  kept",
        "  plain                500.0 steps/s   0.50  (500.0-500.0)",
    ]
