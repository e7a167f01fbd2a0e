"""How old a worker's gradients are, in updates: the figures of the report, and of a line in the log.

staleness = Staleness(pulls_ahead=0)
staleness.start(10)
staleness.note(11)
staleness.mean, staleness.counts
"""

import collections

MAX_SHARES = 8  # in the line of the log


class Staleness:
    """How many updates are made between the pull of a step's variables and its own update, by the global steps that it sees.

    >>> staleness = Staleness(pulls_ahead=1)
    >>> staleness.start(10)
    >>> for step in (11, 13, 14):                                # someone else's is the 12th
    ...     staleness.note(step)
    >>> staleness.mean
    1.333...
    >>> staleness.counts
    {0: 1, 2: 2}
    >>> staleness.describe()
    'mean 1.3 updates; 0: 33%, 2: 67%'

    Args:
      pulls_ahead: 0: variables are pulled when the step begins; 1: when the one before does.
    """

    def __init__(self, pulls_ahead):
        self.pulls_ahead = pulls_ahead
        self._pulled_at: collections.deque[int] = collections.deque()
        self._counts: collections.Counter[int] = collections.Counter()

    def start(self, step):
        """A session begins, and pulls, at this global step."""
        self._pulled_at = collections.deque([step], maxlen=self.pulls_ahead + 1)

    def note(self, step, known=None):
        """A step is done, and was this global step; its staleness is counted from those seen, if it is not known."""
        self._counts[max(step - 1 - self._pulled_at[0], 0) if known is None else known] += 1
        self._pulled_at.append(step)

    @property
    def mean(self):
        """Of all gradients so far; None before the first."""
        total = sum(self._counts.values())
        return sum(value * count for value, count in self._counts.items()) / total if total else None

    @property
    def counts(self):
        """Staleness -> number of gradients, the lowest first."""
        return dict(sorted(self._counts.items()))

    def describe(self):
        """The mean and the shares of the commonest values; "" before the first."""
        total = sum(self._counts.values())
        commonest = sorted(value for value, _ in self._counts.most_common(MAX_SHARES))
        shares = [f"{value}: {self._counts[value] / total:.0%}" for value in commonest]
        more = ["others"] if len(self._counts) > MAX_SHARES else []
        return f"mean {self.mean:.1f} updates; {', '.join([*shares, *more])}" if total else ""
