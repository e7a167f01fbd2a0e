"""`ps_train launch`: the tasks of one job on hosts over ssh, or a script of tf.distribute, with TF_CONFIG for each task.

| the command line | then |
|---|---|
| `launch --hosts=a:2,b:2 [flags of train]` | ps tasks and workers of `ps_train train` on these hosts |
| `launch --num_workers=2 -- python script.py` | the script, once for each task, on this host |
| both | the script on these hosts |
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from absl.flags import FlagValues

from ps_train import command_lines, net, paths
from ps_train.cluster import EVALUATOR, Cluster, TaskId
from ps_train.commands.train import collect
from ps_train.config import TrainConfig
from ps_train.devices import gpus_of
from ps_train.errors import EXIT_DONE, UsageError
from ps_train.failures import Policy, ScriptPolicy
from ps_train.flags import cluster_flags, config_from_flags
from ps_train.follower import Follower
from ps_train.launcher import EVALUATING
from ps_train.local_config import fill_in, make_directories, report_path
from ps_train.process import SignalInbox
from ps_train.progress import Screen
from ps_train.resolvers import host_list, launched
from ps_train.resolvers.host_list import Host
from ps_train.resolvers.launched import Place
from ps_train.resolvers.resolved import size_problems
from ps_train.ssh import Ssh
from ps_train.status_page import serving
from ps_train.supervisor import Job, done, run_job
from ps_train.tethered import LINGER_SECS, Remote, Wanted
from ps_train.wording import counted

HERE = "127.0.0.1"
FLAGS_OF_HOSTS = ("remote_dir", "remote_python", "ssh")
_SETTINGS_OF_SCRIPTS = ("startup_timeout_secs", "peer_timeout_secs", "shutdown_timeout_secs", "log_dir")


class Plan(NamedTuple):
    """What to launch.

    Attributes:
      config: the settings; of a script only bounds and `log_dir` count.
      script: its command line; empty: `ps_train train`.
      hosts: by address, over ssh; empty: this one.
      jobs: the places of ps, chief, worker and evaluator.
      port_base: of each host's first task; None: free ports of this host.
      remote: how the hosts are reached.
      max_restarts: of all tasks.
    """

    config: TrainConfig
    script: Sequence[str]
    hosts: dict[str, Host]
    jobs: dict[str, list[Place]]
    port_base: int | None
    remote: Remote
    max_restarts: int

    @property
    def num_places(self) -> int:
        """How many tasks there are."""
        return sum(map(len, self.jobs.values()))


def run(values: FlagValues, script: Sequence[str] = ()) -> int:
    """Launches, and follows to the end; gives the exit status."""
    plan = make_plan(values, script)
    screen = Screen()
    try:
        make_directories(dataclasses.replace(plan.config, train_dir=None))
        with SignalInbox() as inbox:
            if plan.port_base is not None:
                return _run_on(plan, screen, inbox, range(plan.port_base, launched.MAX_PORT + 1))
            with net.reserve_ports(plan.num_places) as ports:
                return _run_on(plan, screen, inbox, ports)
    finally:
        screen.close()


def _run_on(plan: Plan, screen: Screen, inbox: SignalInbox, ports: Sequence[int]) -> int:
    job = make_job(plan, ports)
    cluster = None if plan.script else _cluster(plan, _addresses(plan, ports))
    with serving(plan.config.status_port, cluster, partial(screen.complain, goes_on=True), screen.complain):
        status = run_job(job, screen, inbox, plan.max_restarts)
    if status == EXIT_DONE and not plan.script and plan.config.evaluate:
        status = run_job(_evaluation(plan, job), screen, inbox)
    if status == EXIT_DONE:
        screen.say(done(job))
        if not plan.script:
            chief = next(wanted.host for wanted in job.tasks if not wanted.lingers)
            screen.say(f"Checkpoints: {plan.config.train_dir} on {chief}, in {plan.remote.directory}")
    return status


def make_plan(values: FlagValues, script: Sequence[str] = ()) -> Plan:
    """Reads all flags; raises `UsageError` with everything that is wrong with them."""
    problems: list[str] = []
    hosts = collect(partial(read_hosts, values), problems) or []
    config = collect(lambda: config_from_flags(values), problems) or TrainConfig()
    problems += _contradictions(values, script)
    wrong_sizes = size_problems(cluster_flags(values))
    problems += wrong_sizes
    jobs = {} if problems else collect(partial(_place_jobs, values, hosts, bool(script)), problems) or {}
    num_workers = len(jobs.get("chief", [])) + len(jobs.get("worker", [])) or None
    problems += config.problems(None if script else num_workers)
    problems += paths.problems(TrainConfig(log_dir=config.log_dir), is_saving=False, is_local=True)
    width = max((place.local_index for places in jobs.values() for place in places), default=0)
    base = values.port_base
    if base is not None and not 1 <= base <= launched.MAX_PORT - width:
        problems.append(
            f"--port_base={base} is out of range for hosts with up to {width + 1} tasks. Expected a whole number from 1 to "
            f"{launched.MAX_PORT - width}."
        )
    if problems:
        raise UsageError.from_problems(problems)
    if hosts and base is None:
        base = launched.port_base_of(
            launched.number_of(f"{socket.gethostname()} {os.getpid()} {time.time()}")
        )
    filled = dataclasses.replace(fill_in(config), log_dir=config.log_dir)
    ssh = Ssh(shlex.split(values.ssh or "ssh"), config.startup_timeout_secs, config.peer_timeout_secs)
    remote = Remote(ssh, values.remote_dir or os.getcwd(), values.remote_python or sys.executable)
    by_address = {host.address: host for host in hosts}
    return Plan(config if script else filled, script, by_address, jobs, base, remote, values.max_restarts)


def read_hosts(values: FlagValues) -> list[Host]:
    """Those of --hosts or --hostfile; raises `UsageError`."""
    if values.hosts and values.hostfile:
        raise UsageError("--hosts and --hostfile both name hosts. Leave one of the two out.")
    if values.hosts is not None:
        return host_list.parse_hosts(values.hosts)
    if values.hostfile is None:
        return []
    try:
        with open(values.hostfile, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"--hostfile={values.hostfile} cannot be read: {reason}. Check its path.") from None
    return host_list.parse_hostfile(text, f"--hostfile={values.hostfile}")


def _contradictions(values: FlagValues, script: Sequence[str]) -> list[str]:
    """A line for each flag that has no meaning here."""
    problems = []
    has_hosts = values.hosts is not None or values.hostfile is not None
    if not script and not has_hosts:
        problems.append(
            "The command launch has neither hosts nor a script. Add --hosts=a:2,b:2 or --hostfile, or -- and a command such as "
            "python script.py; for a cluster on this host leave out the word launch."
        )
    names = cluster_flags(values).names_given
    if not values["cluster_resolver"].using_default_value:
        names.append("cluster_resolver")
    if names:
        problems.append(
            f"--{', --'.join(names)}: the command launch gives tasks their jobs and hosts. Leave it out."
        )
    problems += host_flag_problems(values)
    if values.max_restarts < 0:
        problems.append(
            f"--max_restarts={values.max_restarts} is out of range. Expected a whole number from 0."
        )
    if not script:
        if values.private_network:
            problems.append("--private_network is for a local cluster. Leave it out.")
        return problems + [
            f"--{name} is for a script, after --: with hosts alone worker 0 is the chief, and --evaluate evaluates at the end. "
            "Leave it out."
            for name in ("chief", "evaluator")
            if values[name].value
        ]
    fields = [
        field.name for field in dataclasses.fields(TrainConfig) if field.name not in _SETTINGS_OF_SCRIPTS
    ]
    return problems + [
        f"--{name} is for models of ps_train, and a script has its own flags. Leave it out, or put it behind the script's name."
        for name in (*fields, "sync_replicas")
        if not values[name].using_default_value
    ]


def host_flag_problems(values: FlagValues) -> list[str]:
    """What is wrong with the flags that go with --hosts: they are given without it; --ssh is no command."""
    unused = []
    if values.hosts is None and values.hostfile is None:
        unused = [
            f"--{name} is for other hosts, and none are given. Add --hosts or leave it out."
            for name in FLAGS_OF_HOSTS
            if values[name].value is not None
        ]
    return unused + _ssh_problems(values.ssh)


def _ssh_problems(text: str | None) -> list[str]:
    expected = "Expected a command, such as --ssh='ssh -p 2222'."
    try:
        words = ["ssh"] if text is None else shlex.split(text)
    except ValueError as error:
        reason = str(error).rstrip(".").lower()
        return [f"--ssh={text} cannot be split into words: {reason}. {expected}"]
    return [] if words and words[0] else [f"--ssh is empty. {expected}"]


def _place_jobs(values: FlagValues, hosts: Sequence[Host], is_script: bool) -> dict[str, list[Place]]:
    """The place of each task; raises `UsageError` if there are too few, or another number than asked for."""
    has_no_ps = is_script and values["num_ps"].using_default_value
    num_ps = 0 if has_no_ps else cluster_flags(values).wanted_ps
    num_others = num_ps + bool(values.chief) + bool(values.evaluator)
    places = host_list.places(hosts)
    if not hosts:
        places = [Place(HERE, number) for number in range(num_others + values.num_workers)]
    num_workers = len(places) - num_others
    asked = None if values["num_workers"].using_default_value else values.num_workers
    if num_workers < 1 or asked not in (None, num_workers):
        raise UsageError(
            f"The hosts have {counted(len(places), 'slot')}, and with {counted(num_others, 'task')} of other jobs "
            f"{counted(asked or 1, 'worker')} {'need' if asked else 'or more need'} {num_others + (asked or 1)}. Change --hosts, --num_ps "
            "or --num_workers."
        )
    jobs = launched.divide(places, num_ps)
    jobs["chief"] = [jobs["worker"].pop(0)] if values.chief else []
    jobs["evaluator"] = [jobs["worker"].pop()] if values.evaluator else []
    return jobs


def make_job(plan: Plan, ports: Sequence[int]) -> Job:
    """The tasks, each with its command line and environment; `ports` from a host's first task on."""
    hosts = _addresses(plan, ports)
    if plan.script:
        return _job_of_script(plan, hosts)
    cluster = _cluster(plan, hosts)
    secs = plan.config.shutdown_timeout_secs
    tasks = [_task_of_training(plan, cluster, task) for task in cluster.tasks]
    make_policy = partial(Policy, cluster, plan.config)
    return Job(
        tasks, plan.remote, cluster.training_tasks, make_policy, secs, secs, log_dir=plan.config.log_dir,
        make_follower=partial(Follower, cluster, plan.config, is_local=False),
    )  # fmt: skip


def _addresses(plan: Plan, ports: Sequence[int]) -> dict[str, list[str]]:
    return {
        name: [f"{place.host}:{ports[place.local_index]}" for place in places]
        for name, places in plan.jobs.items()
    }


def _cluster(plan: Plan, hosts: dict[str, list[str]]) -> Cluster:
    return Cluster.from_dict(hosts, "the names of the hosts", is_colocated=plan.config.has_no_ps)


def _job_of_script(plan: Plan, hosts: dict[str, list[str]]) -> Job:
    names = [
        TaskId(job, index)
        for job in ("ps", "chief", "worker", "evaluator")
        for index in range(len(hosts[job]))
    ]
    # With ps tasks a chief is the one whose end is the job's: ParameterServerStrategy's workers are servers without an end.
    has_servers = bool(hosts["ps"] and hosts["chief"])
    finishers = [task for task in names if task.job == "chief" or not has_servers and task.job == "worker"]
    tasks = [_task_of_script(plan, hosts, task, lingers=task not in finishers) for task in names]
    secs = plan.config.shutdown_timeout_secs
    return Job(
        tasks, plan.remote, finishers, ScriptPolicy,
        rest_secs=secs if hosts["evaluator"] else LINGER_SECS,  # it may have the last checkpoint to evaluate
        shutdown_secs=secs, escalate_secs=LINGER_SECS, log_dir=plan.config.log_dir, is_rest_free=True,
    )  # fmt: skip


def _host_of(plan: Plan, task: TaskId) -> str | None:
    place = plan.jobs[task.job][task.index]
    return plan.hosts[place.host].ssh_name if plan.hosts else None


def _task_of_training(plan: Plan, cluster: Cluster, task: TaskId) -> Wanted:
    place = plan.jobs[task.job][task.index]
    path = plan.config.report_file and report_path(plan.config, task, cluster.is_chief(task))
    config = dataclasses.replace(plan.config, report_file=path, log_dir=None, evaluate=None, status_port=None)
    if config.gpus is not None and task.job != "ps":
        here = [each for each in plan.jobs["worker"] if each.host == place.host]
        config = dataclasses.replace(config, gpus=gpus_of(config.gpus, here.index(place), len(here)))
    argv = [plan.remote.python, "-m", "ps_train", *command_lines.of_a_task(task, cluster, config)]
    return Wanted(task, _host_of(plan, task), argv, {}, lingers=task.job == "ps")


def _evaluation(plan: Plan, job: Job) -> Job:
    """Evaluates where the chief has saved, and reports beside it."""
    path = plan.config.report_file and report_path(plan.config, EVALUATOR)
    config = dataclasses.replace(plan.config, report_file=path, log_dir=None, evaluate=None, status_port=None)
    argv = [plan.remote.python, "-m", "ps_train", "eval", *config.as_flags()]
    wanted = Wanted(EVALUATOR, _host_of(plan, TaskId("worker", 0)), argv, {})
    return job._replace(
        tasks=[wanted],
        finishers=[wanted.task],
        make_policy=ScriptPolicy,
        make_follower=None,
        message=EVALUATING,
    )


def _task_of_script(plan: Plan, hosts: dict[str, list[str]], task: TaskId, lingers: bool) -> Wanted:
    cluster = {job: addresses for job, addresses in hosts.items() if addresses and job != "evaluator"}
    config = {"cluster": cluster, "task": {"type": task.job, "index": task.index}}
    env = {"TF_CONFIG": json.dumps(config), "PYTHONUNBUFFERED": "1"}
    if "TF_FORCE_GPU_ALLOW_GROWTH" not in os.environ and plan.num_places > len(plan.hosts or [HERE]):
        env["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"  # several tasks share a host's GPUs
    return Wanted(task, _host_of(plan, task), plan.script, env, lingers)
