"""Bad numbers on one worker, and synchronous jobs that lose a worker for good."""

import numpy as np
import pytest
from harness import checkpoint_of

from ps_train.recorded import read

pytestmark = pytest.mark.cluster

FAST = ["--save_checkpoint_steps=10"]


@pytest.mark.parametrize("update", ["async", "sync"])
def test_nan_on_one_worker_ends_the_job_and_spares_the_checkpoint(make_job, tmp_path, update):
    flags = [f"--update={update}", "--train_steps=100000", *FAST]
    flags += [f"--record={tmp_path}/record"] if update == "async" else []
    job = make_job(flags=flags, params="nan=1:40,slow=0:5")
    job.start_all()
    job.expect_exits(1)
    ps, chief, worker = job.tasks
    assert "NaN in the " in worker.log and " on worker:1, at its local step 41" in worker.log, worker.tail()
    assert "worker:1 failed: NaN in the " in chief.log, chief.tail()
    assert "worker:1 failed: NaN in the " in ps.log, ps.tail()
    values = checkpoint_of(job.train_dir)
    assert np.isfinite(values["w"]).all() and values["global_step"] >= 10
    report = worker.report
    assert report["local_steps"] == 40 and report["curve"][-1][1] == report["global_step"]
    if update == "async":
        record = read(f"{tmp_path}/record")
        assert list(record.bad) == [(1, 0, 41)], "the last one is in it, too"
        what, step = record.bad[1, 0, 41]
        assert report["reason"].startswith(f"{what} on worker:1") and step == report["global_step"]
        assert report["loss"] == record.steps[1, 0, 40].loss
        assert sum(report["staleness_counts"].values()) == 40


@pytest.mark.parametrize("update", ["async", "sync"])
def test_nan_can_be_skipped(make_job, update):
    job = make_job(
        flags=[f"--update={update}", "--train_steps=200", "--on_nan=skip", *FAST],
        params="nan=1:7,slow=0:40",  # so that the other one gets to its eighth step
    )
    job.start_all()
    job.expect_exits(0)
    _, _, worker = job.tasks
    assert "step dropped (1 so far): NaN in the " in worker.log, worker.tail()
    assert worker.report["skipped_steps"] == 1
    values = checkpoint_of(job.train_dir)
    assert np.isfinite(values["w"]).all() and values["global_step"] >= 200


def test_a_sync_job_can_go_on_without_a_lost_worker(make_job):
    flags = ["--update=sync", "--on_worker_loss=continue", "--train_steps=400", *FAST]
    job = make_job(num_workers=3, flags=flags, params="slow=0:10", timeout_secs=6)
    job.start_all()
    ps, chief, _, lost = job.tasks
    lost.wait_for_line("step 1/400")
    lost.kill()
    job.expect_exits(0, [ps, chief, job.tasks[2]])
    assert "worker:2 has been silent for 6 s: going on without it" in chief.log, chief.tail()
    assert chief.report["global_step"] == 400


def test_the_last_worker_trains_on_when_the_backup_is_lost_and_another_has_used_up_its_data(make_job):
    flags = ["--update=sync", "--replicas_to_aggregate=2", *FAST]
    job = make_job(num_workers=3, flags=flags, params="slow=all:20,batches=400:60:400", timeout_secs=8)
    job.start_all()
    ps, chief, second, lost = job.tasks
    lost.wait_for_line(r"step \d+,")  # the first one may be that of an update that the two others made
    lost.kill()
    job.expect_exits(0, [ps, chief, second])
    assert "going on without it" in chief.log, chief.tail()
    assert chief.report["local_steps"] - chief.report["dropped_gradients"] > 300, "it went on alone"
    assert chief.report["reason"] and "gone for" not in chief.log, chief.tail()


def test_a_sync_job_that_ends_for_a_lost_worker_has_saved_its_last_step(make_job):
    flags = ["--update=sync", "--train_steps=100000", "--save_checkpoint_steps=100000"]
    job = make_job(num_workers=2, flags=flags, params="slow=0:10", timeout_secs=6)
    job.start_all()
    ps, chief, lost = job.tasks
    lost.wait_for_line("step 1/100000")
    chief.wait_for_line("step 1/100000")
    lost.kill()
    job.expect_exits(138, [chief, ps])
    assert "gone for 6 s: worker:1 at " in chief.log, chief.tail()
    assert checkpoint_of(job.train_dir)["global_step"] == chief.report["global_step"] > 0
