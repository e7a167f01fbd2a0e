"""Packages that are not installed, or hidden by a file of the user's, through the command line: one line, status 1.

The interpreter of most cases finds stand-ins for the packages in `fake/`, and no other packages at all.
"""

import os
import pathlib
import subprocess
import sys

import pytest

from ps_train.packages import NEEDED

ROOT = pathlib.Path(__file__).parents[2]
HINT = (
    "Activate the virtual environment that ps_train was installed in, or run pip install . in its checkout."
)
MODEL = "import tensorflow as tf\ndef input_fn(context): ...\ndef model_fn(features, labels): ...\n"


def run(cwd, *args, packages=ROOT):
    """Status and stderr of a command line whose packages are those in the directory `packages`, beside ps_train."""
    code = f"import sys, runpy; sys.path[:0] = ['', {str(packages)!r}]; sys.argv[0] = 'x'; " + (
        f"sys.path.append({str(ROOT)!r}); runpy.run_module('ps_train', run_name='__main__', alter_sys=True)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, *args],
        cwd=cwd, capture_output=True, text=True, timeout=60,
        env={k: v for k, v in os.environ.items() if k != "TF_CONFIG"},
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.fixture
def fake(tmp_path):
    """A directory with all packages; absl is the real one."""
    import absl

    directory = tmp_path / "fake"
    for name in NEEDED:
        (directory / name).mkdir(parents=True)
        (directory / name / "__init__.py").write_text("")
    (directory / "absl" / "__init__.py").unlink()
    (directory / "absl").rmdir()
    (directory / "absl").symlink_to(pathlib.Path(absl.__file__).parent)
    return directory


def test_a_package_that_is_not_installed(tmp_path, fake):
    assert run(tmp_path) == (
        1,
        f"ps_train: absl-py is not installed for {sys.executable}, and ps_train needs it. {HINT}\n",
    )
    for name in ("grpc", "numpy"):
        (fake / name / "__init__.py").unlink()
        (fake / name).rmdir()
    assert run(tmp_path, packages=fake) == (
        1,
        f"ps_train: grpcio, numpy are not installed for {sys.executable}, and ps_train needs them. {HINT}\n",
    )
    assert run(tmp_path, "--help", packages=fake)[0] == 0


@pytest.mark.parametrize("has_metadata", [True, False])
@pytest.mark.parametrize(
    "place", [(), ("--job_name=worker", "--ps_hosts=localhost:1", "--worker_hosts=localhost:2")]
)
def test_a_tensorflow_that_is_too_old(tmp_path, fake, has_metadata, place):
    text = "print('imported')\n__version__ = '2.20.1'\n"
    if has_metadata:  # then it is not even imported
        (fake / "tensorflow-2.20.1.dist-info").mkdir()
        (fake / "tensorflow-2.20.1.dist-info" / "METADATA").write_text("Name: tensorflow\nVersion: 2.20.1\n")
        text = "raise SystemExit(7)\n"
    (fake / "tensorflow" / "__init__.py").write_text(text)
    (tmp_path / "mine.py").write_text("")
    status, lines = run(tmp_path, "--model=mine.py", *place, packages=fake)
    line = (
        f"TensorFlow 2.20.1 is installed for {sys.executable}, and ps_train needs 2.21 or later. Run "
        f"{sys.executable} -m pip install 'tensorflow>=2.21', or activate the environment of ps_train."
    )
    assert status == 1
    assert line in lines and len(lines.splitlines()) == 1
    assert run(tmp_path, "--help", packages=fake) == (0, "")


def test_a_package_of_a_package_that_is_not_installed(tmp_path, fake):
    (fake / "tensorflow" / "__init__.py").write_text("import google.protobuf\n")
    (tmp_path / "mine.py").write_text(MODEL)
    assert run(tmp_path, "--model=mine.py", packages=fake) == (
        1,
        f"ps_train: google is not installed for {sys.executable}, and ps_train needs it. {HINT}\n",
    )


@pytest.mark.parametrize(
    "place", [(), ("--job_name=worker", "--ps_hosts=localhost:1", "--worker_hosts=localhost:2")]
)
@pytest.mark.parametrize("name", ["tensorflow", "absl", "numpy"])
def test_a_file_here_that_hides_a_package(tmp_path, fake, name, place):
    (tmp_path / "mine.py").write_text(MODEL)
    (tmp_path / f"{name}.py").write_text(MODEL)
    line = f"ps_train: The file {tmp_path}/{name}.py hides the installed package {name}. Rename it.\n"
    for model in (f"{name}.py", "mine.py"):
        assert run(tmp_path, f"--model={model}", *place, packages=fake) == (1, line)


def test_a_neighbour_of_the_model_that_hides_a_package(tmp_path, fake):
    for file in ("sub/mine.py", "sub/numpy/__init__.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(MODEL)
    assert run(tmp_path, "--model=sub/mine.py", packages=fake) == (
        1,
        f"ps_train: The directory {tmp_path}/sub/numpy hides the installed package numpy. Rename it.\n",
    )


def test_a_folder_without_init_hides_nothing(tmp_path, fake):
    (tmp_path / "numpy").mkdir()
    (tmp_path / "mine.py").write_text(MODEL)
    status, line = run(tmp_path, "--model=mine.py", "--batch_size=0", packages=fake)
    assert (status, line) == (
        1,
        "ps_train: --batch_size=0 is out of range. Expected a whole number from 1.\n",
    )


@pytest.mark.parametrize("text", ["raise AttributeError('x')\n", "", "import mailbox\nmailbox.Mailbox\n"])
def test_a_file_here_that_hides_a_standard_module(tmp_path, fake, text):
    (fake / "tensorflow" / "__init__.py").write_text("import mailbox\nmailbox.Mailbox\n")
    (tmp_path / "mailbox.py").write_text(text)
    (tmp_path / "mine.py").write_text(MODEL)
    assert run(tmp_path, "--model=mine.py", packages=fake) == (
        1,
        f"ps_train: The file {tmp_path}/mailbox.py hides Python's own module mailbox. Rename it.\n",
    )
