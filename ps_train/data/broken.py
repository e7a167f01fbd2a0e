"""What becomes of a record that cannot be read: the task ends with a line that names it, or it is left out and counted.

    broken = Broken("fail")                         # or "skip"
    broken.tell("a.csv", 16, "line 18 has ...")     # ModelError, or a line in the log; called while the data is read

A dataset cannot tell which record it failed at, so a reader's errors are passed over (`ignore_errors`) and noticed by the gap
that they leave in the records' numbers. Then, and only then, Python code runs and finds out what is wrong.
"""

import threading

from ps_train.errors import ModelError
from ps_train.logs import log
from ps_train.wording import did_you_mean, shown

POLICIES = ("fail", "skip")
MAX_NAMED = 10
ADVICE = "Mend or remove it, or leave out what is broken with on_broken='skip'."


class Broken:
    """The policy of one call of a helper, and what it has left out."""

    def __init__(self, policy):
        if policy not in POLICIES:
            raise ModelError(
                f"on_broken={shown(policy)} is unknown; 'fail' or 'skip' is expected. {did_you_mean(str(policy), POLICIES)}".strip()
            )
        self.policy = policy
        self._lock = threading.Lock()
        self._seen = set()

    def tell(self, path, number, reason):
        """Raises ModelError, or notes that `number` of `path` is left out; each is noted once, however often it is read."""
        if self.policy == "fail":
            raise ModelError(f"{path}: {reason}. {ADVICE}")
        with self._lock:
            if (path, number) in self._seen:
                return
            self._seen.add((path, number))
            count = len(self._seen)
        if count <= MAX_NAMED or not count & (count - 1):  # then at 16, 32, 64 and so on
            log.warning("input: left out %s: %s (%d so far)", path, reason, count)
