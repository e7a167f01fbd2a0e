"""Sessions that are lost one after another, with no step between them, though every ps answers all the while.

    relapse = Relapse(TaskId("worker", 1), "10.0.0.3:2222")
    relapse.note((local_steps, ps_runs), session.lost_by, bound_secs=60)   # after each loss; PeerLostError past the bound
    relapse.forget()                                                       # a ps was away: that is another story

A ps that is away is waited for, with a bound. But the ps tasks also connect to each worker, at the address that the cluster
has for it, to take its gradients. If that leads nowhere (another host, a firewall), the boards, to which the worker
connects, know nothing of it, and each new session is lost in its first step.
"""

import re

from ps_train.errors import PeerLostError
from ps_train.liveness import SILENCE_SECS, awake_clock, line_throttle
from ps_train.logs import Throttle, log

AGAIN = "the session was lost {count} times in {secs:.0f} s before a step was done, though every ps answers: {cause}"
ADVICE = "The ps tasks connect to {task} at {address}, too: check that this leads to this host, and that its port is open."


class Relapse:
    """The losses since the last step that was done, or since a ps was away.

    Args:
      task: this task.
      address: where the cluster has it.
      clock: seconds.
    """

    def __init__(self, task, address, clock=awake_clock):
        self._task, self._address, self._clock = task, address, clock
        self._state, self._since, self._count = None, 0.0, 0
        self._line_due = Throttle(SILENCE_SECS)

    def note(self, state, error, bound_secs):
        """Takes in a loss; whether it is the first one.

        Args:
          state: what is another one once a step was done or a ps is a new process.
          error: of the session that was lost, or None.
          bound_secs: after which the losses are too many.

        Raises:
          PeerLostError: they are.
        """
        now = self._clock()
        if self._count == 0 or state != self._state:
            self._state, self._since, self._count = state, now, 1
            self._line_due = line_throttle(now)
            return True
        self._count += 1
        said = AGAIN.format(count=self._count, secs=now - self._since, cause=cause_of(error))
        advice = ADVICE.format(task=self._task, address=self._address)
        if now - self._since > bound_secs:
            raise PeerLostError(f"{said}. {advice}")
        if self._line_due.is_due(now):
            log.warning("%s; giving up after %g s. %s", said, bound_secs, advice)
        return False

    def forget(self):
        """What was counted so far had another cause."""
        self._count = 0


def cause_of(error):
    """An error of TensorFlow in a few words.

    >>> text = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.3:2222: Failed to connect to remote "
    >>> cause_of(Exception(text + "host: Connection refused"))
    '10.0.0.3:2222: Failed to connect to remote host: Connection refused'
    """
    text = str(getattr(error, "message", error) or "").strip()
    found = re.search(r"ipv[46]:(\S+: [^\n\"]*)", text)
    line = found[1] if found else text.partition("\n")[0]
    return line.replace("tcp handshaker shutdown", "connection timed out")[:200] or "no reason is known"
