"""How many gradients a synchronous update takes of the workers that are still there; the rule of who may be missed.

>>> num_needed(quorum=2, num_workers=3, num_present=3, num_missing=1)       # the backup worker is lost: an update takes two
2
>>> num_needed(quorum=2, num_workers=3, num_present=2, num_missing=1)       # then another has left: the last one goes on alone
1
>>> num_needed(quorum=3, num_workers=3, num_present=3, num_missing=1)       # without backups all are needed
3
"""


def num_needed(quorum: int, num_workers: int, num_present: int, num_missing: int) -> int:
    """Gradients of an update: as many as there are members, up to the quorum.

    As many workers as there are backups may be missing, as if they had left; more are missed.

    Args:
      quorum: gradients of an update while all are there.
      num_workers: training tasks of the job.
      num_present: those that have not left, their data being used up, the missing ones included.
      num_missing: those that are lost, or have never come.
    """
    return min(quorum, num_present - min(num_missing, num_workers - quorum))
