"""Jobs whose input is made by `ps_train.data`: every record is trained on once, and what is broken ends them with a line."""

import re

import pytest

pytestmark = pytest.mark.cluster


def write(path, lines, header="x,y"):
    path.write_text("".join(f"{line}\n" for line in [header, *lines]))
    return path


def points(count):
    return [f"{i},{2.5 * i}" for i in range(count)]


def make(make_job, params, *flags):
    return make_job(num_workers=2, model="csv_line.py", params=params, flags=["--batch_size=4", *flags])


@pytest.mark.parametrize("update", ["sync", "async"])
def test_every_record_is_trained_on_once_however_uneven_the_shards(tmp_path, make_job, update):
    for number, count in enumerate([40, 3, 8, 1, 0]):
        write(tmp_path / f"{number}.csv", points(count))
    with make(make_job, f"files={tmp_path}/*.csv,repeat=false", f"--update={update}") as job:
        job.start_all()
        job.expect_exits(0)
        workers = [task for task in job.tasks if task.name.startswith("worker")]
        assert sum(task.report["examples"] for task in workers) == 52
        for number, task in enumerate(workers):
            assert f"input: each 2nd record of 5 files, by record, shard {number + 1} of 2" in task.log
            assert "every worker reads all" not in task.log


def test_a_broken_record_ends_the_job_with_its_name(tmp_path, make_job):
    write(tmp_path / "a.csv", points(40))
    bad = write(tmp_path / "b.csv", [*points(30), "no,1", *points(10)])
    with make(make_job, f"files={tmp_path}/*.csv", "--train_steps=100000") as job:
        tasks = job.start_all()
        job.expect_exits(1)
        told = f"{bad}: record 31 (line 32): column 'x' holds 'no', and a float32 is expected. Mend"
        lines = [
            line for task in tasks for line in task.log.splitlines() if " error: " in line and told in line
        ]
        assert any(re.match(r"[\d:]+ worker:1 error: ", line) for line in lines)
        assert tasks[-1].report["reason"].startswith(told)


def test_a_broken_record_is_left_out_on_demand(tmp_path, make_job):
    bad = write(tmp_path / "b.csv", [*points(30), "no,1", *points(10)])
    with make(make_job, f"files={bad},repeat=false,on_broken=skip") as job:
        job.start_all()
        job.expect_exits(0)
        logs = "\n".join(task.log for task in job.tasks)
        assert logs.count(f"input: left out {bad}: record 31 (line 32): column 'x' holds 'no'") == 1
        assert sum(task.report.get("examples") or 0 for task in job.tasks if task.name[0] == "w") == 40


def test_a_mistake_in_the_files_names_the_line_of_the_model(tmp_path, make_job):
    with make(make_job, f"files={tmp_path}/*.tsv", "--train_steps=10") as job:
        worker = job.start("worker:0")
        assert worker.wait(60) == 1
        assert re.search(rf"csv_line\.py:17: No file matches {tmp_path}/\*\.tsv on this host\.", worker.log)
        assert "Traceback" not in worker.log


def test_an_empty_shard_is_warned_of(tmp_path, make_job):
    path = write(tmp_path / "a.csv", points(1))
    with make(make_job, f"files={path},repeat=false") as job:
        job.start_all()
        job.expect_exits(0)
        empty = [task.name for task in job.tasks if "shard of the data is empty" in task.log]
        assert empty == ["worker:1"]


def test_data_that_nobody_shards_is_told_of_once(make_job):
    with make(make_job, "raw=true") as job:
        job.start_all()
        job.expect_exits(0)
        told = [task.log.count("input: every worker reads all of the data, as") for task in job.tasks]
        assert dict(zip([task.name for task in job.tasks], told, strict=True)) == {
            "ps:0": 0, "worker:0": 1, "worker:1": 0
        }  # fmt: skip
