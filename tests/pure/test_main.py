"""The command line as a process: SIGINT at any moment is one line, and a script that imports ps_train keeps its own."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

import ps_train
from ps_train import __main__ as command
from ps_train import commands

ROOT = pathlib.Path(ps_train.__file__).parents[1]
INTERRUPT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
ASK = "import ps_train, signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)\n"


def run(folder, *argv, cwd=None):
    path = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.run(
        [sys.executable, *argv], capture_output=True, text=True, timeout=60, cwd=cwd or folder,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
@pytest.mark.parametrize("module", ["traceback", "absl"])
@pytest.mark.parametrize("argv", [["-m", "ps_train"], ["-m", "ps_train", "--help"]])
def test_a_signal_while_modules_are_imported_is_one_line(tmp_path, module, argv, name, status):
    """The first one that is imported, and one of a package."""
    (tmp_path / f"{module}.py").write_text(INTERRUPT.replace("SIGINT", name))
    (tmp_path / "cwd").mkdir()  # in the current one, a file that is named like a package is refused
    done = run(tmp_path, *argv, cwd=tmp_path / "cwd")
    assert (done.returncode, done.stdout, done.stderr) == (status, "", f"ps_train: Stopped by {name}.\n")


def test_so_it_is_for_the_installed_command(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ps_train").write_text("from ps_train.__main__ import run\nrun()\n")
    (tmp_path / "traceback.py").write_text(INTERRUPT)
    done = run(tmp_path, "bin/ps_train")
    assert (done.returncode, done.stderr) == (130, "ps_train: Stopped by SIGINT.\n")


def test_a_sigint_that_is_ignored_stays_so(tmp_path):
    (tmp_path / "traceback.py").write_text(INTERRUPT + "raise SystemExit(7)\n")
    ignore = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    done = run(tmp_path, "-c", ignore + "os.execv(sys.executable, [sys.executable, '-m', 'ps_train'])")
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.parametrize("argv", [["-m", "mine"], ["mine.py"], ["-c", ASK], ["-m", "mine", "ps_train"]])
def test_a_script_that_imports_ps_train_keeps_its_sigint(tmp_path, argv):
    (tmp_path / "mine.py").write_text(ASK)
    assert run(tmp_path, *argv).stdout == "True\n"


def test_a_command_has_pythons_own_sigint(monkeypatch, capsys):
    """Whoever handles it, from then on, handles a KeyboardInterrupt."""
    seen = []

    def interrupted(values):
        seen.append(signal.getsignal(signal.SIGINT))
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "load", lambda name: interrupted)
    before = signal.signal(signal.SIGINT, ps_train._leave)
    try:
        assert command.main([]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.default_int_handler]
    assert capsys.readouterr().err == "ps_train: Stopped by SIGINT.\n"
