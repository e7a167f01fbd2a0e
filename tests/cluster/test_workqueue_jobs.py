"""Jobs whose workers take their data from the work queue: who trained on what, by files that the steps write."""

import collections
import signal
import time

import pytest
from harness import START_SECS, checkpoint_of

pytestmark = pytest.mark.cluster
POSITION = "ps_train/input_queue_0"


class Data:
    """The jobs of a test, and what their steps were made of."""

    def __init__(self, make_job, tmp_path):
        self._make_job, self._seen = make_job, tmp_path / "seen"
        self._seen.mkdir()

    def job(self, params, *flags, num_workers=2, num_ps=1, **settings):
        params = f"{params},seen={self._seen}"
        flags = ["--input=workqueue", "--batch_size=8", "--seed=3", *flags]
        return self._make_job(
            num_ps=num_ps, num_workers=num_workers, model="pieces.py", params=params, flags=flags, **settings
        )

    def seen(self, task=None):
        """Ids in the order in which they were trained on, of a worker's process or of all."""
        paths = [p for p in self._seen.iterdir() if task is None or p.name.endswith(f".{task.pid}")]
        return [int(word) for path in paths for word in path.read_text().split()]

    def forget(self):
        for path in self._seen.iterdir():
            path.unlink()

    def wait_for(self, task, count):
        deadline = time.monotonic() + START_SECS
        while len(self.seen(task)) < count:
            assert task.status is None, task.tail()
            assert time.monotonic() < deadline, f"{len(self.seen(task))} records\n{task.tail()}"
            time.sleep(0.05)


@pytest.fixture
def data(make_job, tmp_path):
    return Data(make_job, tmp_path)


def write_files(folder, num_files, num_records):
    for number in range(num_files):
        ids = range(number * num_records, (number + 1) * num_records)
        (folder / f"{number:02}.csv").write_text("id\n" + "".join(f"{i}\n" for i in ids))
    return f"{folder}/*.csv"


@pytest.mark.parametrize("update", ["async", "sync"])
def test_every_record_comes_once_and_a_fast_worker_takes_more(data, tmp_path, update):
    files = write_files(tmp_path, 24, 30)
    with data.job(f"how=csv,files={files},repeat=false,slow=1:50", f"--update={update}") as job:
        _, fast, slow = job.start_all()
        job.expect_exits(0)
        assert sorted(data.seen()) == list(range(720))
        assert "input: 24 pieces, by file, from the work queue on ps:0" in fast.log
        assert "every worker reads all" not in fast.log
        if update == "async":
            assert len(data.seen(fast)) > len(data.seen(slow))
        assert fast.report["examples"] + slow.report["examples"] == 720
        assert list(checkpoint_of(job.train_dir)[POSITION]) == [1] * 24


def test_records_of_few_files_and_several_passes(data, tmp_path):
    files = write_files(tmp_path, 2, 100)
    with data.job(f"how=csv,files={files},repeat=3,slow=0:10", "--batch_size=7") as job:
        tasks = job.start_all()
        job.expect_exits(0)
        assert "input: 16 pieces, by record, from the work queue on ps:0" in tasks[1].log
        assert list(checkpoint_of(job.train_dir)[POSITION]) == [3] * 16


def test_what_a_killed_worker_had_comes_again(data):
    with data.job("how=numpy,count=1600,repeat=false,slow=0:20", timeout_secs=6, num_workers=3) as job:
        tasks = job.start_all()
        victim = tasks[3]
        data.wait_for(victim, 40)
        victim.kill()
        before = set(data.seen(victim))
        job.expect_exits(0, tasks=tasks[:3])
        counts = collections.Counter(data.seen())
        assert set(counts) == set(range(1600)), "a record is lost"
        again = {i for i, count in counts.items() if count > 1}
        assert again <= before, "what another worker had came twice"
        assert max(counts.values()) <= 2
        assert list(checkpoint_of(job.train_dir)[POSITION]) == [1] * 64


def test_a_worker_that_is_back_frees_what_it_had(data):
    with data.job("how=numpy,count=1600,repeat=false,slow=0:20") as job:
        tasks = job.start_all()
        data.wait_for(tasks[2], 40)
        tasks[2].kill()
        before = set(data.seen(tasks[2]))
        again = job.start("worker:1")
        job.expect_exits(0, tasks=[tasks[0], tasks[1], again])
        counts = collections.Counter(data.seen())
        assert set(counts) == set(range(1600))
        assert {i for i, count in counts.items() if count > 1} <= before


def test_a_job_goes_on_where_its_checkpoint_is(data):
    flags = ["--save_checkpoint_steps=20"]
    with data.job("how=numpy,count=1600,repeat=false,slow=all:20", *flags) as job:
        tasks = job.start_all()
        data.wait_for(tasks[1], 400)
        for task in tasks:
            task.kill()
        done = list(checkpoint_of(job.train_dir)[POSITION])
        trained = {i for i in range(1600) if done[i % 64]}
        assert trained <= set(data.seen()), "a piece counts as done whose records were not trained on"
        assert trained
        data.forget()
        again = job.start_all()
        job.expect_exits(0, tasks=again)
        assert sorted(data.seen()) == sorted(set(range(1600)) - trained)


@pytest.mark.parametrize("how", ["how=pieces,count=300,size=50", "how=numpy,count=304"])
def test_in_sync_all_that_was_trained_on_is_done_at_the_end(data, how):
    with data.job(f"{how},repeat=false,slow=all:20", "--update=sync") as job:
        job.start_all()
        job.expect_exits(0)
        done = list(checkpoint_of(job.train_dir)[POSITION])
        assert done == [1] * len(done)
        assert sorted(set(data.seen())) == list(range(int(how.split("count=")[1].split(",")[0])))


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_broken_file_is_read_once_it_is_mended(data, tmp_path, num_workers):
    files = write_files(tmp_path, 20, 20)
    broken = tmp_path / "03.csv"
    whole = broken.read_text()
    broken.write_text(whole.replace("63\n", "x63\n"))
    with data.job(f"how=csv,files={files},repeat=false", num_workers=num_workers) as job:
        tasks = job.start_all()
        assert [task.wait(START_SECS) for task in tasks[1:]] == [1] * num_workers
        tasks[0].wait(START_SECS)
        assert checkpoint_of(job.train_dir)[POSITION][3] == 0
        broken.write_text(whole)
        again = job.start_all()
        job.expect_exits(0, tasks=again)
        assert set(data.seen()) == set(range(400))


def test_batches_of_half_a_step_are_not_done(data):
    flags = ["--accumulate_steps=8", "--batch_size=25"]
    with data.job("how=numpy,count=3200,repeat=false,nap=100", *flags) as job:
        tasks = job.start_all()
        data.wait_for(tasks[1], 50)
        time.sleep(0.6)  # for most of the next step's eight
        for task in tasks:
            task.send(signal.SIGINT)
        assert [task.wait(30) for task in tasks] == [130] * 3
        found = checkpoint_of(job.train_dir)
        assert 0 < sum(found[POSITION]) * 50 <= found["global_step"] * 200


def test_zipped_parts_are_refused(data):
    with data.job("how=numpy,count=640,zip=1") as job:
        _, chief, _ = job.start_all()
        assert chief.wait(START_SECS) == 1
        assert "the dataset zips 2 parts of the work queue (made at " in chief.log
        assert "Traceback" not in chief.log


def test_a_checkpoint_of_the_other_way_to_divide_the_data_is_told_of(data):
    with data.job("how=numpy,count=160", "--train_steps=10", num_workers=1) as job:
        for flags, told in (
            (["--input=shard"], ""),
            (
                ["--input=workqueue", "--train_steps=20"],
                "the checkpoint has no position of ps_train/input_queue_0",
            ),
            (["--input=shard", "--train_steps=30"], "is not used without --input=workqueue"),
        ):
            tasks = [job.start("ps:0", *flags), job.start("worker:0", *flags)]
            job.expect_exits(0, tasks=tasks)
            assert told in tasks[1].log


def test_without_an_end_the_passes_follow_one_another(data):
    flags = ["--train_steps=150", "--save_checkpoint_steps=1000"]
    with data.job("how=pieces,count=400,size=20,slow=1:30", *flags) as job:
        job.start_all()
        job.expect_exits(0)
        counts = collections.Counter(data.seen())
        done = list(checkpoint_of(job.train_dir)[POSITION])
        assert set(counts) == set(range(400))
        assert max(done) - min(done) <= 2, done
        assert min(done) >= 1


class Waiting:
    """A job in which the chief has the last pieces, and the other worker waits for them."""

    PARAMS = "how=numpy,count=640,repeat=false,slow=0:1500"

    def __init__(self, data, *flags):
        self.job = data.job(self.PARAMS, *flags, timeout_secs=8)
        self.ps, self.chief = self.job.start_all(["ps:0", "worker:0"])
        data.wait_for(self.chief, 8)
        self.waiting = self.job.start("worker:1")
        self.waiting.wait_for_line(
            "no piece of the data is left for now: waiting for those that others have in hand"
        )
        time.sleep(0.3)  # for the steps with what it has, the next of which waits
        assert self.waiting.status is None, self.waiting.tail()


def test_a_worker_that_waits_ends_with_a_signal(data):
    one = Waiting(data)
    with one.job:
        one.waiting.send(signal.SIGTERM)
        assert one.waiting.wait(5) == 143
        assert "did not return in time" not in one.waiting.log


def test_a_worker_that_waits_ends_with_the_data(data):
    one = Waiting(data, "--stall_secs=1")
    with one.job:
        one.waiting.wait_for_line("so: waiting for pieces of the data that other workers have in hand")
        one.job.expect_exits(0, secs=60)
        assert sorted(data.seen()) == list(range(640))


def test_a_worker_that_waits_notices_that_the_chief_is_gone(data):
    one = Waiting(data)
    with one.job:
        one.chief.kill()
        assert one.waiting.wait(40) == 138


def test_a_worker_that_waits_notices_that_the_ps_is_gone(data):
    one = Waiting(data)
    with one.job:
        one.ps.kill()
        assert one.waiting.wait(40) == 138
        assert one.chief.wait(40) == 138


def test_a_worker_that_waits_outlives_a_ps_that_comes_back(data):
    one = Waiting(data)
    with one.job:
        one.ps.kill()
        again = one.job.start("ps:0")
        one.waiting.wait_for_line("making a new one; input starts anew")
        one.job.expect_exits(0, tasks=[again, one.chief, one.waiting])
        assert set(data.seen()) == set(range(640))


def test_all_workers_have_to_divide_the_data_alike(data):
    with data.job("how=numpy,count=1600") as job:
        job.start("ps:0")
        job.start("worker:0")
        other = job.start("worker:1", "--input=shard")
        assert other.wait(START_SECS) != 0
        assert "--input=shard and the others have --input=workqueue. Give all the same." in other.log
