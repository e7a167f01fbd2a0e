"""The command launch before anything is started: hosts, places, contradictions; and who is to blame afterwards."""

import json
import os
import signal

import pytest

from ps_train import flags, supervisor
from ps_train.__main__ import pick_command
from ps_train.cluster import TaskId
from ps_train.commands import launch
from ps_train.errors import UsageError
from ps_train.failures import ROOT_CAUSE_SECS, End, ScriptPolicy, plain
from ps_train.resolvers.host_list import Host, parse_hostfile, parse_hosts
from ps_train.ssh import Ssh
from ps_train.tethered import Exit

SCRIPT = ["--", "python", "script.py", "--hosts=theirs", "eval"]


def plan(*args):
    values, words = flags.parse(["launch", *args])
    assert pick_command(words) == "launch"
    return launch.make_plan(values, words[2:])


def problems(*args):
    with pytest.raises(UsageError) as caught:
        plan(*args)
    return str(caught.value).splitlines()


def where(made):
    return {
        job: [f"{place.host}/{place.local_index}" for place in places] for job, places in made.jobs.items()
    }


def test_ps_tasks_go_to_different_hosts_and_the_chief_and_evaluator_get_places_of_theirs():
    made = plan("--hosts=a:2,b:3", "--num_ps=2", "--chief", "--evaluator", *SCRIPT)
    assert where(made) == {"ps": ["a/0", "b/0"], "chief": ["a/1"], "worker": ["b/1"], "evaluator": ["b/2"]}
    assert where(plan("--hosts=a:2,u@b")) == {
        "ps": ["a/0"],
        "worker": ["a/1", "b/0"],
        "chief": [],
        "evaluator": [],
    }
    for flag in ("--colocate_ps", "--update=allreduce"):
        assert where(plan("--hosts=a:2", flag))["worker"] == ["a/0", "a/1"]
        job = launch.make_job(plan("--hosts=a:2", flag, "--remote_python=py"), range(2222, 3000))
        assert [str(each.task) for each in job.tasks] == ["worker:0", "worker:1"]
    assert where(plan(*SCRIPT))["worker"] == ["127.0.0.1/0", "127.0.0.1/1"] and not where(plan(*SCRIPT))["ps"]


def test_each_task_of_a_script_is_told_who_it_is():
    job = launch.make_job(
        plan("--hosts=u@a:2,b", "--port_base=2222", "--evaluator", *SCRIPT), range(2222, 3000)
    )
    cluster = {"worker": ["a:2222", "a:2223"]}
    assert [(str(each.task), each.host, json.loads(each.env["TF_CONFIG"])) for each in job.tasks] == [
        ("worker:0", "u@a", {"cluster": cluster, "task": {"type": "worker", "index": 0}}),
        ("worker:1", "u@a", {"cluster": cluster, "task": {"type": "worker", "index": 1}}),
        ("evaluator:0", "b", {"cluster": cluster, "task": {"type": "evaluator", "index": 0}}),
    ]
    assert job.tasks[0].argv == SCRIPT[1:] and list(job.finishers) == [
        TaskId("worker", 0),
        TaskId("worker", 1),
    ]


def test_a_task_of_training_gets_its_flags():
    made = plan(
        "--hosts=a:2,b",
        "--port_base=2222",
        "--remote_python=py",
        "--gpus=0,1",
        "--train_dir=t",
        "--batch_size=7",
    )
    job = launch.make_job(made, range(2222, 3000))
    ps, first, second = job.tasks
    assert (ps.host, first.host, second.host) == ("a", "a", "b") and ps.lingers and not first.lingers
    assert first.argv[:5] == ["py", "-m", "ps_train", "--job_name=worker", "--task_index=0"]
    assert {"--ps_hosts=a:2222", "--worker_hosts=a:2223,b:2222", "--batch_size=7", "--gpus=0,1"} <= set(
        first.argv
    )


def test_the_script_keeps_its_words():
    values, words = flags.parse(["launch", "--num_workers=3", *SCRIPT])
    assert (words, values.num_workers, values.hosts) == (["launch", *SCRIPT], 3, None)
    assert flags.parse(["eval", "--", "x"])[1] == ["eval", "x"]


@pytest.mark.parametrize(
    "args, lines",
    [
        ([], ["The command launch has neither hosts nor a script."]),
        (["--hosts=a", "--hostfile=h"], ["--hosts and --hostfile both name hosts."]),
        (["--hosts=a:0,b,b"], ["--hosts: a has 0 slots.", "--hosts has b twice."]),
        (
            ["--hosts=a:2,u@A:2"],
            ["--hosts has a and A, which are one host. Expected it once, with the sum of its slots."],
        ),
        (["--hosts=localhost,127.0.0.1"], ["--hosts has localhost and 127.0.0.1, which are one host."]),
        (["--hosts=[::2],[0::2]"], ["--hosts has [::2] and [0::2], which are one host."]),
        (["--hosts=a b"], ["--hosts has 'a b'. Expected host or host:slots"]),
        (["--hosts=-oProxyCommand=x"], ["--hosts: '-oProxyCommand=x' is no host."]),
        (["--hostfile=nowhere"], ["--hostfile=nowhere cannot be read: No such file or directory."]),
        (
            ["--hosts=a"],
            ["The hosts have 1 slot, and with 1 task of other jobs 1 worker or more need 2."],
        ),
        (
            ["--hosts=a:3", "--num_workers=4"],
            ["The hosts have 3 slots, and with 1 task of other jobs 4 workers need 5."],
        ),
        (["--hosts=a:3", "--chief"], ["--chief is for a script, after --"]),
        (["--hosts=a:3", "--private_network"], ["--private_network is for a local cluster."]),
        (
            ["--hosts=a:3", "--job_name=ps"],
            ["--job_name: the command launch gives tasks their jobs and hosts."],
        ),
        (
            ["--hosts=a:3", "--cluster_resolver=slurm"],
            ["--cluster_resolver: the command launch gives tasks their jobs and hosts. Leave it out."],
        ),
        (["--task_index=1", "--cluster_resolver=flags", *SCRIPT], ["--task_index, --cluster_resolver: the"]),
        (
            ["--hosts=a:3", "--port_base=65534"],
            ["--port_base=65534 is out of range for hosts with up to 3 tasks."],
        ),
        (["--hosts=a:3", "--max_restarts=-1"], ["--max_restarts=-1 is out of range."]),
        (["--hosts=a:3", "--ssh= "], ["--ssh is empty. Expected a command, such as --ssh='ssh -p 2222'."]),
        (["--hosts=a:3", "--ssh=''"], ["--ssh is empty."]),
        (
            ["--hosts=a:3", "--ssh=ssh -o 'ProxyJump=b"],
            [
                "--ssh=ssh -o 'ProxyJump=b cannot be split into words: no closing quotation. Expected a command"
            ],
        ),
        (["--remote_dir=x", *SCRIPT], ["--remote_dir is for other hosts, and none are given."]),
        (
            ["--batch_size=3", *SCRIPT],
            ["--batch_size is for models of ps_train, and a script has its own flags."],
        ),
    ],
)
def test_mistakes(args, lines):
    found = problems(*args)
    assert len(found) == len(lines), found
    for line, start in zip(found, lines, strict=True):
        assert line.startswith(start), line


@pytest.mark.parametrize(
    "words, line",
    [
        (["--"], "There is no command after --."),
        (["script.py"], "'script.py' stands by itself."),
        (
            ["python"],
            "There is 'python' after the command launch. To launch a script, put -- before its command.",
        ),
    ],
)
def test_a_script_needs_two_dashes(words, line):
    with pytest.raises(UsageError) as caught:
        pick_command(flags.parse(["launch", *words])[1])
    assert str(caught.value).startswith(line)


def test_hostfiles():
    assert parse_hostfile("a slots=2 # x\n\n b\n") == [Host("a", 2), Host("b", 1)]
    assert parse_hosts("[::1]:2")[0].ssh_name == "::1"
    for text, line in (
        ("a b", "--hostfile line 1 is 'a b'. Expected a host, and slots=N"),
        ("# none\n", "--hostfile names no host."),
        ("a\nb slots=0", "--hostfile line 2: b has 0 slots."),
    ):
        with pytest.raises(UsageError) as caught:
            parse_hostfile(text)
        assert str(caught.value).startswith(line)


def test_of_two_that_fail_at_once_the_one_that_was_killed_is_the_cause():
    policy = ScriptPolicy()
    policy.note(End(TaskId("worker", 1), 134, "ended by SIGABRT", ended_by=6))
    assert policy.find_failure(10.0) is None
    policy.note(End(TaskId("worker", 0), 137, "ended by SIGKILL", ended_by=9))
    failure = policy.find_failure(10.0 + ROOT_CAUSE_SECS)
    assert (failure.name, failure.status) == ("worker:0", 137)


def test_a_connection_that_is_lost_is_worth_a_restart():
    explain = Ssh(["ssh", "-p", "22"]).explain
    assert explain("b", "/d", "py", 255, ["client_loop: send disconnect: Broken pipe"], was_ready=True) == (
        138, "the connection to b was lost: client_loop: send disconnect: Broken pipe",
    )  # fmt: skip
    assert (
        explain("b", "/d", "py", 2, [], was_ready=False)[1]
        == "no task could be started on b: ssh ended with status 2"
    )


def test_what_to_try_has_the_options_of_the_program_that_failed():
    _, reason = Ssh(["ssh", "-p", "22"]).explain(
        "b", "/d", "py", 255, ["u@b: Permission denied."], was_ready=False
    )
    assert reason.endswith(": ssh -p 22 -o BatchMode=yes b true has to work.")
    assert (
        Ssh(["ssh", "-F", "c f"], 5.0)
        .silent_start("b")
        .endswith(
            "within 5 s (--startup_timeout_secs). Expected its shell, its "
            "directories and its Python to answer: try ssh -F 'c f' b true."
        )
    )


def test_the_users_ssh_options_go_first():
    argv = Ssh(["ssh", "-oBatchMode=no"], connect_secs=300, silence_secs=60).argv("h", "a dir", "py", "")
    assert (
        argv[:2] == ["ssh", "-oBatchMode=no"]
        and "ServerAliveInterval=20" in argv
        and "ConnectTimeout=30" in argv
    )
    assert argv[-1].endswith("-m ps_train.tether' 'a dir' py ''")


def test_the_last_line_as_a_reason():
    assert plain("10:11:12 ps:0 error: gone (status 138)", TaskId("ps", 0)) == "gone"
    assert plain("ValueError: no", TaskId("ps", 0)) == "ValueError: no"


class FakeTask:
    """A TetheredTask that has ended with `statuses` of its job at once; None: it runs until it is killed."""

    statuses, started, deadlines = {}, [], []
    at_close = staticmethod(lambda: None)

    def __init__(self, wanted, place):
        self.wanted, self.is_ready, self.last_lines = wanted, True, []
        status = self.statuses.get(wanted.task.job, 0)
        self.exit = None if status is None else Exit(status)
        self.started.append(str(wanted.task))

    def waited_secs(self, now):
        return 0.0

    def take_lines(self):
        return []

    def beat(self):
        pass

    def send(self, number):
        if self.exit is None and number == signal.SIGKILL:
            self.exit = Exit(137, number)

    def kill(self):
        self.send(signal.SIGKILL)

    def close(self, deadline=None):
        self.deadlines.append(deadline)
        self.at_close()


@pytest.fixture
def fake_tasks(monkeypatch):
    """Puts FakeTask in the place of TetheredTask."""
    monkeypatch.setattr(supervisor, "TetheredTask", FakeTask)
    monkeypatch.setattr(FakeTask, "started", [])
    monkeypatch.setattr(FakeTask, "deadlines", [])
    return lambda **attributes: [
        monkeypatch.setattr(FakeTask, name, value) for name, value in attributes.items()
    ]


def run(*args):
    values, words = flags.parse(["launch", *args])
    return launch.run(values, words[2:])


@pytest.mark.parametrize(
    ("statuses", "args"),
    [
        ({"worker": 138}, ["--num_workers=2", "--max_restarts=5", *SCRIPT]),
        ({}, ["--hosts=a:3", "--evaluate", "--train_dir=t"]),
    ],
)
def test_ctrl_c_between_two_starts_ends_the_job(fake_tasks, capsys, statuses, args):
    fake_tasks(statuses=statuses, at_close=staticmethod(lambda: os.kill(os.getpid(), signal.SIGINT)))
    assert run(*args) == 130
    assert "ps_train: Stopped by SIGINT.\n" in capsys.readouterr().err
    assert len(FakeTask.started) == (3 if "--evaluate" in args else 2), "none of the second start"
    assert len(FakeTask.deadlines) == len(FakeTask.started) and len(set(FakeTask.deadlines)) == 1


def test_a_ps_that_does_not_end_after_the_last_worker_is_a_failure_as_in_a_local_cluster(fake_tasks, capsys):
    fake_tasks(statuses={"ps": None})
    assert run("--hosts=a:3", "--train_dir=t", "--noevaluate", "--shutdown_timeout_secs=0.2") == 1
    told = capsys.readouterr()
    assert "ps:0 failed (status 1): did not end within 0.2 s after the last worker\n" in told.err
    assert "Done" not in told.out


def test_the_launcher_serves_the_page_and_no_task():
    made = plan("--hosts=a:2,b", "--status_port=0")
    job = launch.make_job(made, range(2222, 3000))
    assert made.config.status_port == "0" and len(job.tasks) == 3
    assert not any("status_port" in word for wanted in job.tasks for word in wanted.argv)
    assert not any("status_port" in word for word in launch._evaluation(made, job).tasks[0].argv)
    cluster = launch._cluster(made, launch._addresses(made, range(2222, 3000)))
    assert [cluster.address(task) for task in cluster.ps_tasks] == ["a:2222"]
