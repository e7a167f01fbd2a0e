"""Whether this task belongs on a ps's board: the same cluster, a version that it understands, nobody else under its name.

    admission = Admission(ps, address)
    admission.judge(own, cluster, records)      # of a board that was read, before anything is written there
    admission.note_replaced(own, replaced)      # what a write has overwritten
    admission.is_granted, admission.refusal

A living task's record changes with every beat; one that does not is of a process that is dead, or stands still, and gives
way. (One that is not at the task's address, as this one is, gives way, too.)
"""

from ps_train.cluster import ENDED, Cluster
from ps_train.errors import EXIT_RETRYABLE, RefusedError

RIVAL_SECS = 1.5  # in which the record of a living task changes, its process not being stopped
MIN_CLASHES = 2


class Admission:
    """This task's admission to one board.

    Attributes:
      is_granted: whether this task may write there.
      refusal: RefusedError if it does not belong there, or None.

    Args:
      ps: the ps's TaskId.
      address: where it is.
      clock: seconds.
    """

    def __init__(self, ps, address, clock):
        self._ps, self._address, self._clock = ps, address, clock
        self._first_seen: dict[str, tuple] = {}  # own key -> (run, beat, when) of another process's record
        self._num_clashes = 0
        self.is_granted = False
        self.refusal: RefusedError | None = None

    def judge(self, own, cluster, records, first=None):
        """Decides by what the board says, if it says enough already.

        Whether a living process writes under this task's name already is decided on the board of the first ps only, or two
        processes that come at the same time could find one another, each on another board, and both go.

        Args:
          own: this task's record.
          cluster: its Cluster.
          records: key -> record.
          first: the Admission to the first ps's board, if that is not this one.
        """
        ps = records.get(str(self._ps))
        if not ps or "cluster" not in ps:
            return  # it has not introduced itself yet
        self.refusal = self._other_cluster(cluster, ps) or self._other_protocol(own, cluster, ps)
        if self.refusal is not None:
            return
        if first is not None:
            self.is_granted = first.is_granted
            return
        other = records.get(own["key"], {})
        is_no_rival = other.get("run", own["run"]) == own["run"] or other.get("state") in ENDED
        if is_no_rival or _is_at_address(own) > _is_at_address(other):
            self.is_granted = True
            return
        run, beat, since = self._first_seen.setdefault(
            own["key"], (other["run"], other["beat"], self._clock())
        )
        if (run, beat) != (other["run"], other["beat"]):
            self.refusal = _second_copy(other)
        elif self._clock() - since > RIVAL_SECS:
            self.is_granted = True

    def note_replaced(self, own, replaced):
        """Takes in what the last write has replaced: the record of another process under this task's name, or not.

        Both notice, and one gives way: the one that is not where the cluster has the task, as the ps tasks cannot reach it;
        of two that are, or of two that are not, the one that was started first.
        """
        other = replaced.get(own["key"], {})
        if other.get("run", own["run"]) == own["run"] or other.get("state") in ENDED:
            return
        last = self._first_seen.get(own["key"])
        self._first_seen[own["key"]] = (other["run"], other["beat"], self._clock())
        if last is not None and last[0] == other["run"] and last[1] != other["beat"]:
            self._num_clashes += 1
        if self._num_clashes >= MIN_CLASHES and _rank(own) < _rank(other):
            self.refusal = _second_copy(other)

    def _other_cluster(self, cluster, ps):
        host = cluster.host(self._ps)
        lines = cluster.differences(Cluster.from_record(ps))
        if not lines:
            return None
        text = (
            f"This task and {host} at {self._address} were given different clusters. Start all tasks with the same "
            "lists."
        )
        return RefusedError("\n".join([text, *lines]), is_stranger=True)

    def _other_protocol(self, own, cluster, ps):
        if own["protocol"] == ps.get("protocol"):
            return None
        return RefusedError(
            f"{cluster.host(self._ps)} at {self._address} runs ps_train {ps.get('version')}, this task {own['version']}, and they do not "
            "understand one another. Install the same version on all hosts.",
            is_stranger=True,
        )


def _is_at_address(record):
    return record.get("is_at_address", True)


def _rank(record):
    return _is_at_address(record), record["started"], record["run"]


def _second_copy(other):
    return RefusedError(
        f"Another process is running as {other['key']}: process {other['pid']} on {other['host']}. End one of the two, or "
        "give each its own --task_index.",
        EXIT_RETRYABLE,
        is_stranger=True,
    )
