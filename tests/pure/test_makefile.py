"""The Makefile's way to a virtual environment, with a python that does as told."""

import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Suits, then makes what a venv whose pip cannot be installed leaves behind.
BROKEN_PYTHON = """\
#!/bin/sh
test "$1" = -c && exit 0
mkdir -p .venv/bin && touch .venv/bin/python
echo 'no ensurepip' >&2
exit 1
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_a_venv_that_fails_leaves_nothing_behind(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    python = tmp_path / "python"
    python.write_text(BROKEN_PYTHON)
    python.chmod(0o755)
    done = subprocess.run(
        ["make", ".venv/bin/python", f"PYTHON={python}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode != 0 and "no ensurepip" in done.stderr
    assert not (tmp_path / ".venv").exists()
