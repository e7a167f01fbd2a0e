"""Which way for tensors to travel is the fastest here: what `--autotune` tries, and what it makes of the times.

    trial = Trial(settings(context))
    while not trial.is_over:
        ...                                     # a step with trial.current, which took `secs`
        trial.note(secs)
    kept = choose(trial.step_secs(), trial.settings[0])

Every step of a trial is a step of the job, with the gradient of its next batch: nothing is done twice. What int8 or `--topk` has
left over on the worker (`updates.parcels`) is each setting's own: that of settings that are not kept is not sent any more.

- What is tried: what the flags say, which is what counts if nothing beats it; the same exact; and the plain way, each tensor by
  itself. What changes the numbers is only left out, never added: `--wire_dtype` and `--prefetch` are tried with and without if
  they are given, with bfloat16 between int8 and float32, and else not at all. How the ps keeps variables (`--fuse_bytes`), and which gradients are joined, is the same
  in all: it is the job's and not a worker's, and another way of keeping them would mean to move a living model.
- A step's graph is built once, by one call of the user's `model_fn`. Each setting is a wiring of it (`rewiring`), laid before the
  first session, and has a session of its own on the one living model (`tuning`). To build the graph anew was the alternative:
  it calls the user's functions again, whose Keras layers get other names and whose input starts over. So was one graph with a
  switch in it (`tf.cond`): what is pulled is then decided on the worker, one more message before each pull, and what one way has
  packed the other would wait for.
- Settings take turns, there, back and there again (a b c c b a a b c): what gets faster or slower meanwhile, as a cache that
  fills, counts for all. Of each turn the median of the steps' times counts, and of the turns again: neither a hiccup nor a turn
  in which a neighbour was restarting decides. The mean of all was the alternative, which one hiccup decides, and the best turn of
  each, which the one decides that ran before the others had come.
- In async each worker decides for itself. In sync all step together, so the chief decides for all (`tuning`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

from ps_train.wire import EXACT

ROUNDS = 3
WARM_STEPS, WARM_SECS = 5, 3.0  # of a turn, whichever is over first; at least one step
TIMED_STEPS, LEAST_SECS = 20, 0.5  # of a turn, when both are over
MIN_TIMES, TIMED_SECS = 3, 5.0  # the same of slow steps
MARGIN = 0.02  # by which another setting must be faster than that of the flags


class Setting(NamedTuple):
    """A way for tensors to travel, as the flags of the same names."""

    pack_bytes: int
    wire_dtype: str = EXACT
    prefetch: bool = False

    @property
    def name(self) -> str:
        """In words, such as `packed, bfloat16`."""
        words = ["packed" if self.pack_bytes else "plain"]
        words += [self.wire_dtype] if self.wire_dtype != EXACT else []
        return ", ".join([*words, "prefetch"] if self.prefetch else words)

    @property
    def flags(self) -> str:
        """The flags that give it."""
        prefetch = "--prefetch" if self.prefetch else "--noprefetch"
        return f"--pack_bytes={self.pack_bytes} --wire_dtype={self.wire_dtype} {prefetch}"


PLAIN = Setting(0)


def given(context: Any) -> Setting:
    """What the flags of a TaskContext say."""
    return Setting(context.pack_bytes, context.wire_dtype, context.prefetch)


def wire_dtypes(context: Any) -> list[str]:
    """Types in which tensors may travel, that of the flags first."""
    wire = context.wire_dtype
    between = ["bfloat16"] if wire == "int8" else []
    return list(dict.fromkeys([wire, *between, EXACT])) if context.autotune else [wire]


def settings(context: Any) -> list[Setting]:
    """What a TaskContext allows, what its flags say first; only that without `--autotune`."""
    if not context.autotune:
        return [given(context)]
    ways = [True, False] if context.prefetch else [False]
    tried = [
        Setting(context.pack_bytes, wire, prefetch) for prefetch in ways for wire in wire_dtypes(context)
    ]
    return list(dict.fromkeys([*tried, PLAIN]))


class Trial:
    """Whose turn it is, and how long its steps took.

    Args:
      settings: list of Setting, of which the first counts as the job's own.
      clock: seconds.
    """

    def __init__(self, settings: Sequence[Setting], clock: Callable[[], float] = time.monotonic):
        self.settings, self._clock = list(settings), clock
        ways = [self.settings[:: -1 if number % 2 else 1] for number in range(ROUNDS)]
        self._turns = deque(sum(ways, []) if len(self.settings) > 1 else [])
        self._turn_secs: dict[Setting, list[float]] = {}  # the median of each turn that is over
        self.num_steps = 0
        self.begin()

    @property
    def is_over(self) -> bool:
        """Whether all turns were had."""
        return not self._turns

    @property
    def current(self) -> Setting:
        """Whose turn it is; the job's own before and after the trial."""
        return self._turns[0] if self._turns else self.settings[0]

    def begin(self) -> None:
        """The turn begins, or begins anew, as with a new session: what was timed in it does not count."""
        self._num_warm, self._is_warm = 0, False
        self._times: list[float] = []
        self._since = self._clock()

    def note(self, secs: float) -> None:
        """A step of the current setting took so long."""
        if self.is_over:
            return
        self.num_steps += 1
        now = self._clock()
        if not self._is_warm:
            self._num_warm += 1
            self._is_warm = self._num_warm >= WARM_STEPS or now - self._since > WARM_SECS
            if self._is_warm:
                self._since = now
            return
        self._times.append(secs)
        if self._is_enough(now - self._since):
            self._turn_secs.setdefault(self.current, []).append(median(self._times))
            self._turns.popleft()
            self.begin()

    def _is_enough(self, secs: float) -> bool:
        if secs > TIMED_SECS:
            return len(self._times) >= MIN_TIMES
        return secs > LEAST_SECS and len(self._times) >= TIMED_STEPS

    def turn_secs(self) -> dict[Setting, list[float]]:
        """Setting -> seconds of a step in each of its turns; one that was cut short counts from MIN_TIMES steps on."""
        found = {setting: list(medians) for setting, medians in self._turn_secs.items()}
        if len(self._times) >= MIN_TIMES:
            found.setdefault(self.current, []).append(median(self._times))
        return found

    def step_secs(self) -> dict[Setting, float]:
        """Setting -> seconds of a step, of those that were timed."""
        return {setting: median(turns) for setting, turns in self.turn_secs().items()}


def choose(step_secs: dict[Setting, float], own: Setting) -> Setting:
    """The fastest, if it is faster than the job's own by more than MARGIN; else that.

    >>> choose({PLAIN: 0.0100, Setting(4096): 0.0070}, own=PLAIN).name
    'packed'
    >>> choose({PLAIN: 0.0100, Setting(4096): 0.0099}, own=PLAIN).name
    'plain'
    """
    best = min(step_secs, key=lambda setting: step_secs[setting], default=own)
    return best if best in step_secs and step_secs[best] * (1 + MARGIN) < step_secs.get(own, 0.0) else own


def table(turn_secs: dict[Setting, list[float]], kept: Setting) -> list[str]:
    """Lines: each setting's steps a second, how many times as fast as the first it is, and the slowest and quickest turn."""
    width = max(len(setting.name) for setting in [kept, *turn_secs])
    first = median(next(iter(turn_secs.values()), [0.0]))
    return [
        f"  {setting.name:<{width}} {1 / median(turns):9.1f} steps/s {first / median(turns):6.2f}"
        f"  ({1 / max(turns):.1f}-{1 / min(turns):.1f}){'  kept' if setting == kept else ''}"
        for setting, turns in turn_secs.items()
    ]
