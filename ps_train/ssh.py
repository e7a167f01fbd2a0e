r"""The system's ssh: the command line that starts a task's tether on a host, and what its failures mean.

>>> Ssh().argv("host1", "/home/me/job", "python3", "")[-2:]
['host1', 'sh -c \'cd -- ... -m ps_train.tether\' /home/me/job python3 \'\'']
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from ps_train.errors import EXIT_PERMANENT, EXIT_RETRYABLE

MAX_CONNECT_SECS = 30
MARGIN_SECS = 2.0
CONNECTION_STATUS = 255  # ssh's own failures
_SAY = "ps_train.ssh: "
_SCRIPT = (
    f'cd -- "$0" 2>/dev/null || {{ echo "{_SAY}directory"; exit 1; }}; '
    f'command -v "$1" >/dev/null || {{ echo "{_SAY}python"; exit 1; }}; '
    'test -z "$2" || { PYTHONPATH="$2${PYTHONPATH:+:$PYTHONPATH}"; export PYTHONPATH; }; exec "$1" -m ps_train.tether'
)


class Ssh(NamedTuple):
    """How hosts are reached.

    Attributes:
      program: ssh and options of the user's.
      connect_secs: for a host to answer, and to start a task.
      silence_secs: a connection without an answer for so long is lost.
    """

    program: Sequence[str] = ("ssh",)
    connect_secs: float = MAX_CONNECT_SECS
    silence_secs: float = 60.0

    @property
    def ready_secs(self) -> float:
        """Bound of a task's start: a little later than ssh's own, whose message says more."""
        return self.connect_secs + MARGIN_SECS

    def _line(self, *words: str) -> str:
        """What a person types, with the options given to this one."""
        return shlex.join([*self.program, *words])

    def argv(self, host: str, directory: str, python: str, python_path: str) -> list[str]:
        """Starts a tether on `host`, in `directory`, by the interpreter `python`; `python_path` goes before its PYTHONPATH."""
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": max(1, min(MAX_CONNECT_SECS, int(self.connect_secs))),
            "ServerAliveInterval": max(1, int(self.silence_secs / 3)),
            "ServerAliveCountMax": 3,
        }
        given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        remote = shlex.join(["sh", "-c", _SCRIPT, directory, python, python_path])
        return [*self.program, "-T", *given, host, remote]

    def silent_start(self, host: str) -> str:
        """Why a task was not started, of which nothing was heard for `connect_secs`."""
        return (
            f"{host} has not started it within {self.connect_secs:g} s (--startup_timeout_secs). Expected its shell, its directories and its Python "
            f"to answer: try {self._line(host)} true."
        )

    def explain(
        self, host: str, directory: str, python: str, status: int, lines: Sequence[str], was_ready: bool
    ) -> tuple[int, str]:
        """The status of a task without an end of its own, and why: from what ssh has ended with and written."""
        said = [line for line in lines if line.strip()]
        text, last = (
            "\n".join(said),
            said[-1].strip().rstrip(".") if said else f"ssh ended with status {status}",
        )
        if was_ready:
            return EXIT_RETRYABLE, f"the connection to {host} was lost: {last}"
        if f"{_SAY}directory" in text:
            return (
                EXIT_PERMANENT,
                f"{host} has no directory {directory}. Make it there, or name another by --remote_dir.",
            )
        if f"{_SAY}python" in text:
            return (
                EXIT_PERMANENT,
                f"{host} has no {python}. Name an interpreter with ps_train there by --remote_python.",
            )
        if "No module named" in text:
            return (
                EXIT_PERMANENT,
                f"{python} on {host} has no ps_train ({last}). Install it there, or name another interpreter by --remote_python.",
            )
        if "Permission denied" in text:
            return (
                EXIT_PERMANENT,
                f"ssh is not let in to {host} ({last}). Expected a key without a passphrase, or an agent that has it: "
                f"{self._line('-o', 'BatchMode=yes', host)} true has to work.",
            )
        if "Host key verification failed" in text:
            return (
                EXIT_PERMANENT,
                f"the host key of {host} is unknown to ssh, or another than before. Log in once ({self._line(host)}) and look at it.",
            )
        if status == CONNECTION_STATUS:
            return (
                EXIT_RETRYABLE,
                f"{host} cannot be reached: {last}. Check its name in --hosts, and that sshd runs there.",
            )
        return EXIT_PERMANENT, f"no task could be started on {host}: {last}"
