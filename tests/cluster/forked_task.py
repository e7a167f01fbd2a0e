"""A task of a test that is forked from a process which has imported TensorFlow already: as the command line runs it, in less time.

The server is multiprocessing's. TensorFlow's runtime and gRPC's threads start in the task only. A task ends when the tests do.
"""

import multiprocessing
import os
import sys
from multiprocessing import forkserver

from ps_train import __main__, process

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["ps_train.worker", "ps_train.ps", "ps_train.evaluator", "rich.console"])


class ForkedTask:
    """Has what the harness uses of a subprocess.Popen."""

    def __init__(self, argv, log_path, env, cwd):
        self._process = SERVER.Process(target=_live, args=(argv, str(log_path), env, cwd), daemon=False)
        self._process.start()
        self.pid = self._process.pid

    def poll(self):
        """The exit status, negative for a signal's number; None while it runs."""
        return self._process.exitcode

    def wait(self, secs):
        """The exit status; None if there is none in time."""
        self._process.join(secs)
        return self._process.exitcode

    def send_signal(self, number):
        """Sends it; nothing if the task has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _live(argv, log_path, env, cwd):
    os.close(forkserver._forkserver._forkserver_alive_fd)  # or the server would stay for the task
    process.tie_to_parent(os.getppid())
    os.setsid()
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND)
    process._redirect(log)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd or os.getcwd())
    sys.path[0] = os.getcwd()
    sys.argv = ["ps_train", *argv]
    process.end(__main__.main(argv))
