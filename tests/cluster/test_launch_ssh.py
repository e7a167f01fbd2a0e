"""`ps_train launch --hosts`: the system's ssh and real sshds, on hosts in network namespaces."""

import contextlib
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest
from harness import checkpoint_of
from launchers import Hosts
from namespaces import why_not
from terminals import Terminal
from test_launch_scripts import SCRIPT
from test_local_cluster import SLOW_MODEL, expect_the_picture_to_agree

pytestmark = pytest.mark.cluster
TRAIN_SECS = 120
GRACE_SECS = 40
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
# With that SHLVL bash does not read this user's .bashrc, which may wait for anything.
SSHD_CONFIG = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
SetEnv SHLVL=9
PasswordAuthentication no
KbdInteractiveAuthentication no
"""
SSH_CONFIG = """\
IdentityFile {folder}/user_key
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile none
StrictHostKeyChecking yes
"""


class SshHosts(Hosts):
    """host0 and host1, each with an sshd; the launcher is on host0."""

    def __init__(self, folder):
        super().__init__(2, folder)
        try:
            self._start_sshds()
        except BaseException:
            self.close()
            raise

    def _start_sshds(self):
        folder = self.folder
        os.makedirs("/run/sshd", exist_ok=True)  # sshd wants it, and is started by hand here
        for key in ("host_key", "user_key", "stranger_key"):
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(make, check=True, timeout=30)
        public = " ".join((folder / "host_key.pub").read_text().split()[:2])
        names = [name for host in self.network.hosts for name in (host.name, host.address)]
        (folder / "known_hosts").write_text("".join(f"{name} {public}\n" for name in names))
        (folder / "sshd_config").write_text(SSHD_CONFIG.format(folder=folder))
        (folder / "ssh_config").write_text(SSH_CONFIG.format(folder=folder))
        for host in self.network.hosts:
            self._launch(
                [*host.prefix, SSHD, "-D", "-e", "-f", str(folder / "sshd_config")],
                folder / f"{host.name}.sshd",
            )
            self._wait_for_sshd(host)

    def _wait_for_sshd(self, host):
        log = self.folder / f"{host.name}.sshd"
        deadline = time.monotonic() + 20
        while "listening on" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)

    def launch(self, *flags, ssh="", **options):
        """Starts the launcher on host0; options as `start` has them."""
        ssh = f"ssh -F {self.folder}/ssh_config {ssh}"
        return self.start(sys.executable, "-m", "ps_train", "launch", f"--ssh={ssh}", *flags, **options)

    def train(self, *flags, hosts="host0:2,host1", **options):
        """Launches one ps on host0 and two workers."""
        return self.launch(f"--hosts={hosts}", "--train_dir=train", "--batch_size=16", *flags, **options)

    def experiment(self, *flags):
        """Starts an experiment on host0 and host1."""
        flags = (f"--ssh=ssh -F {self.folder}/ssh_config", "--hosts=host0:2,host1", "--out=out", *flags)
        return self.start(sys.executable, "-m", "ps_train", "experiment", *flags)

    def tasks(self):
        """Processes of tasks and tethers on the hosts, by their command lines: pid -> words."""
        found = {}
        for pid in self.pids():
            with contextlib.suppress(OSError):
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                if "-m" in words and ("--job_name" in "".join(words) or "ps_train.tether" in words):
                    found[pid] = words
        return {pid: words for pid, words in found.items() if os.path.basename(words[0]).startswith("python")}

    def pid_of(self, job, index):
        return next(
            pid
            for pid, words in self.tasks().items()
            if f"--job_name={job}" in words and f"--task_index={index}" in words
        )

    def wait_for_a_checkpoint(self):
        """Waits for one after the first step."""
        deadline = time.monotonic() + TRAIN_SECS
        while not list((self.folder / "train").glob("model.ckpt-[1-9]*.index")):
            assert time.monotonic() < deadline, "no checkpoint"
            time.sleep(0.05)

    def expect_nothing_left(self, secs=GRACE_SECS):
        deadline = time.monotonic() + secs
        while left := self.tasks():
            assert time.monotonic() < deadline, f"still running: {left}"
            time.sleep(0.1)


@pytest.fixture
def hosts(tmp_path):
    missing = [name for name in ("ssh", "ssh-keygen") if not shutil.which(name)] + ["sshd"] * (SSHD is None)
    if missing:
        pytest.skip(f"runs ssh, and there is no {', '.join(missing)} (openssh-server, openssh-client)")
    if why_not():
        pytest.skip(why_not())
    with SshHosts(tmp_path) as made:
        yield made


def test_a_job_on_two_hosts_trains_to_its_end(hosts):
    (hosts.folder / "hosts").write_text("host0 slots=2  # the ps, too\nhost1\n")
    flags = [
        "--train_steps=40",
        "--train_dir=train",
        "--evaluate",
        "--log_dir=logs",
        "--report_file=report.json",
    ]
    job = hosts.launch("--hostfile=hosts", *flags)
    assert job.wait(TRAIN_SECS) == 0, job.tail()
    assert re.search(r"ps:0 listening at host0:\d+", job.log), job.tail()
    assert re.search(r"worker:0 listening at host0:\d+", job.log), job.tail()
    assert re.search(r"worker:1 listening at host1:\d+", job.log), job.tail()
    assert re.search(r"(?m)^evaluator:0 .*accuracy 0\.", job.log), job.tail()
    assert "Done (status 0): 3 tasks on 2 hosts." in job.log
    assert f"Checkpoints: train on host0, in {hosts.folder}" in job.log
    assert checkpoint_of(hosts.folder / "train")["global_step"] >= 40
    assert "worker:1" in (hosts.folder / "logs/worker1.log").read_text()
    assert (hosts.folder / "report.json").exists() and (hosts.folder / "report.worker1.json").exists()
    hosts.expect_nothing_left(5)


def test_on_a_terminal_there_is_the_picture_of_a_local_cluster(hosts):
    """The frozen worker is marked, and the last figures are those of the reports."""
    (hosts.folder / "slow.py").write_text(SLOW_MODEL)
    flags = ["--model=slow.py", "--update=sync", "--train_steps=200", "--report_file=report.json"]
    with Terminal() as terminal:
        job = hosts.train(*flags, terminal=terminal)
        terminal.wait_for(r"worker:1 +training +\d\d+ steps", TRAIN_SECS, job)
        pid = hosts.pid_of("worker", 1)
        os.kill(pid, signal.SIGSTOP)
        terminal.wait_for(r"worker:0 +waiting for worker:1.*\n +worker:1 +silent for 0:", GRACE_SECS, job)
        os.kill(pid, signal.SIGCONT)
        assert job.wait(GRACE_SECS) == 0, terminal.text
        terminal.wait_for("Done .*3 tasks on 2 hosts", 5, job)
        expect_the_picture_to_agree(terminal, hosts.folder, has_reports=False)
    hosts.expect_nothing_left(5)


def test_the_lines_of_the_tasks_tell_how_far_they_are_where_the_launcher_does_not_reach_the_ps(hosts):
    launcher, host = hosts.network.hosts
    rule = f"tcp dport != 22 ip daddr {host.address} drop"
    launcher.run("nft", f"table inet t {{ chain c {{ type filter hook output priority 0; {rule}; }}; }}")
    (hosts.folder / "slow.py").write_text(SLOW_MODEL)
    flags = ["--model=slow.py", "--train_steps=200", "--report_file=report.json", "--log_every_secs=0.5"]
    with Terminal() as terminal:
        job = hosts.train(*flags, hosts="host1:3", terminal=terminal)
        terminal.wait_for(
            r"step \d\d+/200 .* steps/s .* left\n +ps:0 +serving\n +worker:0 +training", TRAIN_SECS, job
        )
        assert job.wait(GRACE_SECS) == 0, terminal.text
        terminal.wait_for("Done .*3 tasks on 1 host", 5, job)
        expect_the_picture_to_agree(terminal, hosts.folder, has_reports=False)


def test_a_chief_that_is_killed_is_the_headline_and_a_restart_goes_on_from_the_checkpoint(hosts):
    job = hosts.train("--train_steps=1000000", "--max_restarts=1", "--save_checkpoint_steps=500")
    job.wait_for_line(r"worker:1 step \d+", TRAIN_SECS)
    hosts.wait_for_a_checkpoint()
    os.kill(hosts.pid_of("worker", 0), signal.SIGKILL)
    job.wait_for_line("ps_train: All tasks are started again: restart 1 of 1.", GRACE_SECS)
    assert "ps_train: worker:0 failed (status 137): ended by SIGKILL" in job.log
    job.wait_for_line(r"(?s)started again.*worker:0 [^\n]*model.ckpt-[1-9].*worker:1 step \d+", TRAIN_SECS)
    os.kill(hosts.pid_of("worker", 0), signal.SIGKILL)
    assert job.wait(GRACE_SECS) == 137, job.tail()
    assert job.log.count("worker:0 failed (status 137)") == 2
    hosts.expect_nothing_left(5)


def test_a_worker_that_is_killed_is_lost_and_async_goes_on(hosts):
    job = hosts.train("--train_steps=1000000", "--peer_timeout_secs=5")
    job.wait_for_line(r"worker:1 step \d+", TRAIN_SECS)
    os.kill(hosts.pid_of("worker", 1), signal.SIGKILL)
    job.wait_for_line("worker:1 is lost: ended by SIGKILL.* The job goes on without it.", GRACE_SECS)
    os.kill(job.pid, signal.SIGTERM)
    assert job.wait(GRACE_SECS) == 143, job.tail()
    hosts.expect_nothing_left(5)


def test_ctrl_c_saves_and_leaves_nothing_behind(hosts):
    job = hosts.train("--train_steps=1000000")
    job.wait_for_line(r"worker:1 step \d+", TRAIN_SECS)
    assert len(hosts.tasks()) == 6  # a tether each
    os.kill(job.pid, signal.SIGINT)
    assert job.wait(GRACE_SECS) == 130, job.tail()
    assert "ps_train: Stopped by SIGINT." in job.log and "failed" not in job.log
    assert checkpoint_of(hosts.folder / "train")["global_step"] > 0
    hosts.expect_nothing_left(0)


def test_tasks_end_when_their_launcher_is_killed(hosts):
    job = hosts.train("--train_steps=1000000")
    job.wait_for_line(r"worker:1 step \d+", TRAIN_SECS)
    os.kill(job.pid, signal.SIGKILL)
    job.wait(GRACE_SECS)
    hosts.expect_nothing_left(20)
    assert checkpoint_of(hosts.folder / "train")["global_step"] > 0


def test_tasks_end_on_both_sides_of_a_cut_network(hosts):
    flags = ["--train_steps=1000000", "--peer_timeout_secs=6", "--shutdown_timeout_secs=10"]
    job = hosts.train(*flags, "--update=sync")
    job.wait_for_line(r"worker:1 step \d+", TRAIN_SECS)
    hosts.network.blackhole(hosts.network.hosts[1])
    assert job.wait(60) == 138, job.tail()
    assert re.search(r"(?m)^ps_train: \w+:\d failed \(status 138\): ", job.log), job.tail()
    hosts.expect_nothing_left()


def test_a_worker_whose_host_is_cut_off_is_lost_and_async_goes_on(hosts):
    job = hosts.train("--train_steps=1000000", "--peer_timeout_secs=6", "--shutdown_timeout_secs=10")
    job.wait_for_line(r"worker:1 step \d+", TRAIN_SECS)
    hosts.network.blackhole(hosts.network.hosts[1])
    job.wait_for_line("worker:1 is lost: the connection to host1 was lost.* The job goes on without it.", 60)
    job.wait_for_line(r"(?s)goes on without it.*worker:0 step \d+", GRACE_SECS)
    os.kill(job.pid, signal.SIGTERM)
    assert job.wait(GRACE_SECS) == 143, job.tail()
    assert checkpoint_of(hosts.folder / "train")["global_step"] > 0
    hosts.expect_nothing_left()


def test_a_script_on_hosts(hosts):
    (hosts.folder / "script.py").write_text(SCRIPT)
    flags = ["--hosts=root@host0:2,10.77.0.2:2", "--chief", "--num_ps=1", "--port_base=3000"]
    job = hosts.launch(*flags, "--", sys.executable, "script.py", "ps:0=stay", "worker:1=child")
    assert job.wait(GRACE_SECS) == 0, job.tail()
    cluster = (
        '{"chief": ["host0:3001"], "ps": ["host0:3000"], "worker": ["10.77.0.2:3000", "10.77.0.2:3001"]}'
    )
    assert f"worker:0 {cluster}" in job.log, job.tail()
    assert "chief:0 done" in job.log
    hosts.expect_nothing_left(5)


def test_what_is_wrong_with_a_host_is_told_in_a_line(hosts):
    folder = hosts.folder
    (folder / "none").write_text("")
    (folder / "bare").write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S "$@"\n'
    )  # sees no packages
    (folder / "bare").chmod(0o755)
    cases = [
        (["--hosts=host7,host0"], {}, 138, "host7 cannot be reached: ssh: Could not resolve hostname host7"),
        (["--hosts=10.77.0.9,host0"], {}, 138, r"10.77.0.9 cannot be reached: ssh: connect to .*No route to host"),
        (["--hosts=host0:2"], {"ssh": "-p 2"}, 138, r"host0 cannot be reached: ssh: connect to .*Connection refused"),
        (
            ["--hosts=host0:2"], {"ssh": f"-F none -o UserKnownHostsFile={folder}/known_hosts -i {folder}/stranger_key"},
            1, r"ssh is not let in to host0 \(.*Permission denied.*\). Expected a key without a passphrase",
        ),
        (
            ["--hosts=host0:2"], {"ssh": f"-o UserKnownHostsFile={folder}/none"}, 1,
            r"the host key of host0 is unknown to ssh, or another than before. Log in once \(ssh -F .* host0\)",
        ),
        (["--hosts=host0:2", "--remote_dir=nowhere"], {}, 1, "host0 has no directory nowhere. Make it there, or"),
        (["--hosts=host0:2", "--remote_python=nopython"], {}, 1, "host0 has no nopython. Name an interpreter"),
        (
            ["--hosts=host0:2", f"--remote_python={folder}/bare"], {}, 1,
            f"{folder}/bare on host0 has no ps_train .*No module named .*. Install it there, or name another",
        ),
    ]  # fmt: skip
    for flags, options, status, line in cases:
        job = hosts.launch(*flags, **options)
        assert job.wait(GRACE_SECS) == status, job.tail()
        assert re.search(rf"(?m)^ps_train: (ps|worker):0 failed \(status {status}\): {line}", job.log), (
            job.tail()
        )
        assert "Traceback" not in job.log
    hosts.expect_nothing_left(5)


def test_a_port_that_is_taken_and_a_program_that_is_not_there(hosts):
    listen = "import socket, time; s = socket.socket(); s.bind(('', 4000)); s.listen(); print('up', flush=True); time.sleep(1000)"
    taker = hosts.start(*hosts.network.hosts[1].prefix, sys.executable, "-c", listen)
    taker.wait_for_line("up", GRACE_SECS)
    job = hosts.train("--train_steps=40", "--port_base=4000")
    assert job.wait(GRACE_SECS) == 138, job.tail()
    assert re.search(r"(?m)^ps_train: worker:1 failed \(status 138\): host1:4000 .* is in use", job.log), (
        job.tail()
    )
    job = hosts.start(sys.executable, "-m", "ps_train", "launch", "--hosts=host0:2", "--ssh=nossh")
    assert job.wait(GRACE_SECS) == 1
    assert job.log == (
        "ps_train: nossh cannot be started for ps:0: No such file or directory. Install it (Debian: openssh-client), or name "
        "another by --ssh.\n"
    )


def test_more_tasks_than_sshd_lets_begin_at_once(hosts):
    job = hosts.launch("--hosts=host1:30", "--", "echo", "here")
    assert job.wait(TRAIN_SECS) == 0, job.tail()
    assert len(re.findall(r"(?m)^worker:\d+ here$", job.log)) == 30 and "Done (status 0): 30 tasks" in job.log


def test_an_experiment_runs_each_point_on_as_many_slots_as_it_needs(hosts):
    run = hosts.experiment("--grid=num_workers=1,2", "--seeds=1", "--train_steps=20", "--evaluations=4")
    assert run.wait(2 * TRAIN_SECS) == 0, run.tail()
    assert run.log.splitlines()[-1].endswith("2 of 2 runs done. Report: out/report.html"), run.tail()
    records = [
        json.loads((hosts.folder / f"out/runs/num_workers={count}-1/run.json").read_text())
        for count in (1, 2)
    ]
    assert [re.search(r"--hosts=(\S+)", record["command"])[1] for record in records] == [
        "host0:2",
        "host0:2,host1:1",
    ]
    for record in records:
        assert (record["outcome"], record["reason"]) == ("done", "")
        assert record["figures"]["global_step"] >= 20 and record["metrics"]["accuracy"] > 0
        assert len(record["evaluations"]) >= 4
