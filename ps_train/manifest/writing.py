"""A plan's objects as YAML."""

from __future__ import annotations

import re
import shlex
from typing import Any

from ps_train.errors import UsageError
from ps_train.manifest.objects import make_objects
from ps_train.manifest.plan import Plan


def as_yaml(plan: Plan) -> str:
    """The objects as documents of a YAML file, with the command that makes it in a comment; raises `UsageError`."""
    try:
        import yaml
    except ImportError:
        raise UsageError(
            "PyYAML is not installed, and the command manifest writes with it. Install it: pip install pyyaml, or in "
            "ps_train's checkout pip install '.[manifest]'."
        ) from None

    class Dumper(yaml.SafeDumper):
        """Writes everything out, and quotes what some reader of YAML could take for a number or a boolean."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent(dumper: Any, text: str) -> Any:
        is_plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9._/-]*[A-Za-z0-9]", text)
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain else '"')

    Dumper.add_representer(str, represent)
    documents = yaml.dump_all(
        make_objects(plan), Dumper=Dumper, sort_keys=False, width=10**6, explicit_start=True
    )
    comment = command_line(plan).replace("\n", "\n# ")  # a value may have lines
    return f"# {comment}\n{documents}"


def command_line(plan: Plan) -> str:
    """The command that gives this plan."""
    places = {
        "kind": plan.kind, "name": plan.name, "namespace": plan.namespace, "image": plan.image,
        "num_ps": plan.num_ps or None, "num_workers": plan.num_workers, "port": plan.port, "train_volume": plan.train_volume,
        "cpus": plan.cpus, "memory": plan.memory,
    }  # fmt: skip
    given = [f"--{name}={value}" for name, value in places.items() if value is not None]
    return shlex.join(["python", "-m", "ps_train", "manifest", *given, *plan.config.as_flags()])
