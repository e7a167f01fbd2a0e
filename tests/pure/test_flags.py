"""The command line up to the point where TensorFlow would be imported."""

import dataclasses
import os
import pathlib

import pytest
from absl import flags as absl_flags
from hypothesis import given, settings
from hypothesis import strategies as st

from ps_train import __main__ as program
from ps_train import __version__, flags
from ps_train.cluster import TaskId
from ps_train.commands import COMMANDS, eval, load, train
from ps_train.config import TrainConfig
from ps_train.devices import gpus_of
from ps_train.errors import PeerLostError, UsageError
from ps_train.params import Params
from ps_train.resolvers import ClusterFlags, Resolved

FUZZ_EXAMPLES = int(os.environ.get("PS_TRAIN_FUZZ_EXAMPLES", "60"))
ROOT = pathlib.Path(__file__).parents[2]
NOT_SETTINGS = {"num_ps", "num_workers", "cluster_resolver", "sync_replicas"}
OF_THE_PROGRAM = {"flagfile", "undefok", "help", "version"}


def config(*args):
    return flags.config_from_flags(flags.parse(args)[0])


def problems(*args):
    with pytest.raises(UsageError) as caught:
        flags.parse(args)
    return str(caught.value).splitlines()


def plan(*args, env=None):
    return train.make_plan(flags.parse(args)[0], env or {})


def plan_problems(*args, env=None):
    with pytest.raises(UsageError) as caught:
        plan(*args, env=env)
    return str(caught.value).splitlines()


def test_every_setting_is_a_flag_and_every_flag_is_accounted_for():
    settings = {field.name for field in dataclasses.fields(TrainConfig)}
    place = {field.name for field in dataclasses.fields(ClusterFlags)}
    assert (
        set(flags.make_flags())
        == settings | place | NOT_SETTINGS | OF_THE_PROGRAM | flags.OF_SOME_COMMANDS.keys()
    )
    assert settings & (place | NOT_SETTINGS) == {"colocate_ps"}  # it shapes a local cluster, too


def test_flags_have_the_defaults_of_the_settings():
    assert config() == TrainConfig()
    assert flags.cluster_flags(flags.parse([])[0]) == ClusterFlags()


EVERY_SETTING = TrainConfig(
    model="mine.py",
    model_params=Params(units=3, rate=0.1, on=True, name="a:b=c"),
    batch_size=7,
    input="workqueue",
    train_steps=9,
    update="sync",
    replicas_to_aggregate=2,
    train_dir="a dir",
    save_checkpoint_steps=3,
    save_checkpoint_secs=1.5,
    keep_checkpoint_max=0,
    save_summaries_steps=50,
    save_summaries_secs=30.0,
    startup_timeout_secs=1.0,
    peer_timeout_secs=2.0,
    shutdown_timeout_secs=3.0,
    stall_secs=4.0,
    on_worker_loss="continue",
    on_nan="skip",
    pack_bytes="4096",
    bucket_bytes=524288,
    first_ps_bytes="4096",
    partition="auto",
    wire_dtype="bfloat16",
    fuse_bytes="8192",
    prefetch=True,
    accumulate_steps=3,
    local_steps=6,
    max_staleness=4,
    scale_by_staleness=True,
    scale_rate="sqrt",
    max_lead=9,
    warmup_steps=7,
    towers=2,
    gpus="0,1",
    gpu_memory_fraction=0.5,
    allow_growth=True,
    inter_op_threads=3,
    intra_op_threads=4,
    log_device_placement=True,
    allow_soft_placement=True,
    topk=0.25,
    autotune=True,
    tune_process=False,
    seed=5,
    profile_steps=12,
    trace_steps="100:105",
    status_port="localhost:8080",
    report_file="r.json",
    log_dir="logs",
    colocate_ps=True,
    private_network=True,
    record="record",
    log_every_secs=0.5,
    evaluate=False,
    eval_steps=4,
    eval_checkpoints="all",
    debug=True,
)


def test_every_setting_survives_the_way_to_another_process():
    assert config(*EVERY_SETTING.as_flags()) == EVERY_SETTING
    defaults = TrainConfig()
    assert all(
        getattr(EVERY_SETTING, f.name) != getattr(defaults, f.name) for f in dataclasses.fields(defaults)
    )


def test_absls_global_flags_are_left_alone():
    before = set(absl_flags.FLAGS)
    flags.parse(["--job_name=ps"])
    assert set(absl_flags.FLAGS) == before
    assert "job_name" not in absl_flags.FLAGS


def test_a_flagfile_is_read_and_the_command_line_after_it_wins(tmp_path):
    path = tmp_path / "a b.flags"
    path.write_text("# comment\n--update=sync\n\n--batch_size=5\n--nosuch=1\n--undefok=nosuch\n")
    values, words = flags.parse(["eval", f"--flagfile={path}", "--batch_size", "6"])
    assert (values.update, values.batch_size, words) == ("sync", 6, ["eval"])


def test_a_flagfile_that_cannot_be_read(tmp_path):
    missing, binary = tmp_path / "missing.flags", tmp_path / "binary.flags"
    binary.write_bytes(b"\xff\xfe\x00")
    assert problems(f"--flagfile={missing}") == [
        f"--flagfile cannot be read: No such file or directory: '{missing}'. Check its path."
    ]
    assert problems(f"--flagfile={binary}") == [
        "--flagfile is not a text file. Expected one flag per line, as --name=value."
    ]
    assert problems("--flagfile") == ["--flagfile is given without a value. Write --flagfile=VALUE."]


@pytest.mark.parametrize("path", sorted(ROOT.glob("flags/*.flags")), ids=lambda path: path.name)
def test_the_flagfiles_of_the_project_parse(path):
    flags.config_from_flags(flags.parse([f"--flagfile={path}"])[0])


def test_malformed_values_and_unknown_flags_come_in_one_message():
    assert problems(
        "--batch_size=abc", "--peer_timeout_secs", "1m", "--update=asnc", "--debug=maybe", "--bacth_size=3"
    ) == [
        "--batch_size=abc is not a whole number. Expected digits.",
        "--peer_timeout_secs=1m is not a number. Expected one such as 60 or 0.5.",
        "--update=asnc is not a choice. Did you mean async? Expected one of async, sync, allreduce.",
        "--debug=maybe is not a boolean. Expected true or false.",
        "Unknown flag --bacth_size. Did you mean --batch_size? See --help for all flags.",
    ]
    assert problems("--nosync_replica", "--xyzzy") == [
        "Unknown flag --nosync_replica. Did you mean --nosync_replicas? See --help for all flags.",
        "Unknown flag --xyzzy. See --help for all flags.",
    ]
    assert problems("--batch_size 50") == [
        "'--batch_size 50' is one word: in a flagfile a value follows '='. Write --batch_size=50."
    ]
    assert problems("--batch_size") == ["--batch_size is given without a value. Write --batch_size=VALUE."]
    assert problems("--noevaluate=1") == ["--noevaluate takes no value. Write it alone."]


def test_the_legacy_spelling_of_update():
    assert (
        config("--sync_replicas").update == config("--sync_replicas=true", "--update=sync").update == "sync"
    )
    assert config("--nosync_replicas").update == "async"
    with pytest.raises(UsageError) as caught:
        config("--update=async", "--sync_replicas", "--model_params=a")
    assert str(caught.value).splitlines() == [
        "--model_params has 'a', which has no '='. Expected key=value,key=value; a value cannot contain a comma.",
        "--update=async contradicts --sync_replicas, which is the legacy spelling of --update=sync. Keep one.",
    ]


def test_empty_text_is_not_given():
    values, _ = flags.parse(["--job_name=", "--ps_hosts=", "--train_dir="])
    assert not flags.cluster_flags(values).is_given
    assert flags.config_from_flags(values).train_dir is None


def test_plans():
    assert plan() == (Resolved(None, None), TrainConfig())
    hosts = ("--ps_hosts=p:1", "--worker_hosts=w:1,v:1", "--task_index=1")
    assert plan(*hosts, "--job_name=worker").place.task == TaskId("worker", 1)
    env = {"TF_CONFIG": '{"cluster": {"ps": ["p:1"], "chief": ["c:1"]}, "task": {"type": "ps", "index": 0}}'}
    assert plan(env=env).place.task == TaskId("ps", 0)
    assert plan("--job_name=evaluator", "--train_dir=d").place == (None, TaskId("evaluator", 0))


def test_problems_of_place_and_settings_come_in_one_message():
    assert plan_problems("--num_workers=0", "--num_ps=0", "--seed=-1") == [
        "--num_ps=0 is out of range. Expected a whole number from 1.",
        "--num_workers=0 is out of range. Expected a whole number from 1.",
        "--seed=-1 is out of range. Expected a whole number from 0 to 2147483647.",
    ]
    assert plan_problems("--job_name=ps", "--ps_hosts=p", "--worker_hosts=w:1", "--batch_size=0") == [
        "Address 'p' of ps:0 has no port. Expected host:port, such as host:2222. Check --ps_hosts.",
        "--batch_size=0 is out of range. Expected a whole number from 1.",
    ]
    assert plan_problems("--sync_replicas", "--replicas_to_aggregate=3")[0].startswith(
        "--replicas_to_aggregate=3 is more than the 2 workers: "
    )
    assert plan_problems("--job_name=evaluator") == [
        "Task evaluator:0 reads checkpoints, but no --train_dir is given. Add --train_dir."
    ]


def test_sizes_of_a_local_cluster_beside_another_one():
    hosts = ("--ps_hosts=p:1", "--worker_hosts=w:1,v:1,u:1", "--job_name=ps")
    assert plan_problems(*hosts, "--num_ps=2", "--num_workers=4") == [
        "--num_ps=2 is for a local cluster, and this is ps:0 of a cluster with 1. "
        "Leave it out, or for a local cluster leave out --job_name and the lists of hosts.",
        "--num_workers=4 is for a local cluster, and this is ps:0 of a cluster with 3. "
        "Leave it out, or for a local cluster leave out --job_name and the lists of hosts.",
    ]
    for same in ("--num_workers=3", "--num_workers=2", "--num_ps=1"):
        assert plan(*hosts, same)
    env = {"TF_CONFIG": '{"cluster": {"ps": ["p:1"], "chief": ["c:1"]}, "task": {"type": "ps"}}'}
    assert plan_problems("--num_workers=3", env=env) == [
        "--num_workers=3 is for a local cluster, and this is ps:0 of a cluster with 1. "
        "Leave it out, or for a local cluster leave out TF_CONFIG."
    ]
    assert plan("--job_name=evaluator", "--train_dir=d", "--num_workers=3")


def test_workers_that_hold_the_variables():
    found = plan("--colocate_ps", "--job_name=worker", "--task_index=1", "--worker_hosts=a:1,b:2")
    assert found.place.cluster.is_colocated and found.config.colocate_ps
    env = {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}'}
    assert plan("--colocate_ps", env=env).place == found.place
    assert plan("--colocate_ps", "--num_workers=3").config.colocate_ps
    assert plan_problems("--colocate_ps", "--num_ps=2", "--on_worker_loss=continue", "--update=sync") == [
        "--num_ps=2 beside --colocate_ps or --update=allreduce: there the workers hold the variables. Leave out one of the two.",
        "--on_worker_loss=continue cannot be kept with --colocate_ps, where a part of the variables is lost with a worker. "
        "Leave out one of the two.",
    ]
    assert plan_problems("--colocate_ps", "--accumulate_steps=2") == [
        "--accumulate_steps=2 with --colocate_ps needs --update=sync: in async a worker's own part of the variables changes "
        "between the batches of a step. Leave out one of the two."
    ]
    assert plan("--colocate_ps", "--accumulate_steps=2", "--update=sync")
    assert plan_problems("--first_ps_bytes=0", "--partition=none") == [
        "--first_ps_bytes is for --colocate_ps: ps tasks of their own share the variables evenly. Leave it out."
    ]


@pytest.mark.parametrize("task", ["worker", "evaluator"])
def test_a_task_that_others_are_to_reach_has_no_private_network(task):
    hosts = ["--ps_hosts=a:1", "--worker_hosts=b:1"] if task == "worker" else ["--train_dir=t"]
    assert plan_problems("--private_network", f"--job_name={task}", *hosts) == [
        f"--private_network is for a local cluster, and this is {task}:0. Leave it out."
    ]


def test_eval_needs_a_train_dir():
    assert eval.make_plan(flags.parse(["--train_dir=d"])[0]).train_dir == "d"
    with pytest.raises(
        UsageError, match="^The command eval reads a checkpoint, but no --train_dir is given. Add"
    ):
        eval.make_plan(flags.parse([])[0])


def test_help_names_every_flag_and_command(capsys):
    assert program.main(["--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for name in (*flags.make_flags(), *COMMANDS):
        assert f"--{name} " in out or f"--[no]{name} " in out or f"\n  {name} " in out, name
    assert max(map(len, out.splitlines())) <= 120


def test_help_names_the_resolvers():
    text = " ".join(program.help_text().split())
    assert "where the cluster comes from: auto, flags, tf_config, slurm, mpi (auto)" in text


def test_help_is_given_whatever_else_is_wrong(capsys):
    assert program.main(["--batch_size=x", "--nosuch", "--help"]) == 0
    assert capsys.readouterr().out.startswith("ps_train trains")


def test_version(capsys):
    assert program.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ps_train {__version__}\n"


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (
            ["evl"],
            "Unknown command 'evl'. Did you mean eval? Expected one of train, launch, eval, status, bench, plan, replay, experiment, chaos, trace, doctor, manifest, or none for train.",
        ),
        (["model=lr.py"], "'model=lr.py' has no dashes. To set that flag, write --model=lr.py."),
        (
            ["eval", "train_steps=5"],
            "'train_steps=5' has no dashes. To set that flag, write --train_steps=5.",
        ),
        (["moons.py"], "'moons.py' stands by itself. To use the model in that file, write --model=moons.py."),
        (
            ["eval", "a/m.py"],
            "'a/m.py' stands by itself. To use the model in that file, write --model=a/m.py.",
        ),
        (
            ["zzz"],
            "Unknown command 'zzz'. Expected one of train, launch, eval, status, bench, plan, replay, experiment, chaos, trace, doctor, manifest, or none for train.",
        ),
        (
            ["train", "x"],
            "There is 'x' after the command train. Expected flags only, such as --train_steps=5.",
        ),
        (
            ["--sync_replicas", "True"],
            "'True' stands by itself. Expected a boolean flag as --flag, --noflag or --flag=True.",
        ),
    ],
)
def test_words_that_are_no_command(capsys, args, line):
    assert program.main(args) == 1
    assert capsys.readouterr() == ("", f"ps_train: {line}\n")


def test_every_command_loads():
    assert all(callable(load(name)) for name in COMMANDS)


def test_an_error_is_its_message_and_its_status(capsys, monkeypatch):
    def fail(values):
        raise PeerLostError("Lost ps:0.\nRestart.")

    monkeypatch.setattr(program.commands, "load", lambda name: fail)
    assert program.main([]) == 138
    assert capsys.readouterr().err == "ps_train: Lost ps:0.\nps_train: Restart.\n"
    assert program.main(["--debug"]) == 138
    assert "Traceback" in capsys.readouterr().err


NAMES = sorted(set(flags.make_flags()) - {"flagfile"})  # it would read files of this machine
VALUES = st.text(max_size=20) | st.sampled_from(
    ["", "0", "1", "-1", "1e400", "nan", "inf", "true", "ps", "worker", "chief", "evaluator", "sync", "async", "a:1", "a:1,b:2",
     "[::1]:1", "::1:2", "localhost:1,127.0.0.1:1", "a=1,b=", "٣", "1_000", "ps:0@3", "worker:1@2:3s", "tf_config", "mine.py"]
)  # fmt: skip
WORDS = st.one_of(
    st.builds("--{}={}".format, st.sampled_from(NAMES), VALUES),
    st.builds("--{}".format, st.sampled_from(NAMES) | st.text(max_size=12)),
    st.builds("--no{}".format, st.sampled_from(NAMES)),
    st.sampled_from(sorted(COMMANDS)) | st.text(max_size=12),
)


@settings(max_examples=FUZZ_EXAMPLES, deadline=None)
@given(st.lists(WORDS, max_size=7))
def test_fuzz_command_line(words):
    """A plan, or a mistake in words: no other exception."""
    try:
        values, _ = flags.parse(words)
        if not (values["help"].value or values["version"].value):  # for which nothing is planned
            train.make_plan(values, {})
    except (UsageError, PeerLostError) as error:
        assert str(error).strip()


@pytest.mark.parametrize("gpus", ["none", "3", "0,1,2"])
def test_a_workers_part_of_the_gpus_is_a_flag_again(gpus):
    for index in range(2):
        (flag,) = TrainConfig(gpus=gpus_of(gpus, index, 2)).as_flags()
        assert flags.config_from_flags(flags.parse([flag])[0]).problems() == []
