"""`ps_train manifest`: Kubernetes objects of a job, as YAML on stdout; see `ps_train.manifest`.

| the flags name | then |
|---|---|
| a model and its settings, as for `train`; --num_ps, --num_workers | the pods get them as their arguments |
| this task's place, or files and a network of this host | these are refused: the manifest gives each pod its own |
"""

from __future__ import annotations

from absl.flags import FlagValues

from ps_train import command_lines, manifest
from ps_train.commands import print_text, train
from ps_train.config import TrainConfig
from ps_train.errors import EXIT_DONE, UsageError
from ps_train.flags import cluster_flags, config_from_flags
from ps_train.manifest import Plan
from ps_train.resolvers.resolved import size_problems
from ps_train.wording import shown

DEFAULT_NAME = "ps-train"
_OF_THIS_HOST = ("cluster_resolver", "port_base", "private_network", "log_dir", "report_file", "evaluate")


def run(values: FlagValues) -> int:
    """Prints the manifest; gives the exit status."""
    print_text(manifest.as_yaml(make_plan(values)).rstrip("\n"))
    return EXIT_DONE


def make_plan(values: FlagValues) -> Plan:
    """Reads the flags; raises `UsageError` with everything that is wrong with them."""
    problems = _out_of_place(values)
    wrong_sizes = size_problems(cluster_flags(values))
    config = train.collect(lambda: config_from_flags(values), problems) or TrainConfig()
    problems += wrong_sizes + config.problems(None if wrong_sizes else values.num_workers)
    if not values.image:
        problems.append(
            "The command manifest needs an image for the pods, and none is given. Add --image=IMAGE, with ps_train installed in it."
        )
    plan = Plan(
        values["kind"].value or manifest.KINDS[0],
        DEFAULT_NAME if values["name"].value is None else values["name"].value,
        values.image or "image",
        0 if config.has_no_ps else values.num_ps,
        values.num_workers,
        config,
        values.namespace or None,
        command_lines.PORT if values.port is None else values.port,
        values.train_volume or None,
        values.cpus or None,
        values.memory or None,
    )
    problems += manifest.problems(plan)
    if plan.kind == "tfjob" and not wrong_sizes and plan.num_ps + plan.num_workers == 1:
        problems.append(
            "--kind=tfjob with one task: the operator gives it no TF_CONFIG. Add workers, or use --kind=plain."
        )
    if problems:
        raise UsageError.from_problems(problems)
    return plan


def _out_of_place(values: FlagValues) -> list[str]:
    names = [*cluster_flags(values).names_given]
    names += [name for name in _OF_THIS_HOST if not values[name].using_default_value]
    return [
        f"--{name}={shown(values[name].value).strip(chr(39))} is of no use in a manifest, which gives each pod its own place. "
        "Leave it out."
        for name in names
    ]
