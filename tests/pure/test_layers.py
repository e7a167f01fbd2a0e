"""The layer table of the design against the imports: a module imports from layers above its own, never sideways."""

import ast
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parents[2] / "ps_train"

# A module may import from the rows before its own; a package is one module here. The design's layers 1, 2 and 6 take
# two or three rows each, because `cluster` is what its neighbours talk about, and hooks are how liveness reaches a session.
LAYERS = (
    "errors wording processors timeline allocator staleness choices curve quorum step_stats",
    "compat addresses whole_files packages messages step_trace devices params figures tables",
    "recorded",
    "findings",
    "wire event_files contradictions",
    "cluster logs transport profile",
    "config model net isolation board lost reports datasets checkpoints fingerprint alike flat_variable hooked_steps prefetch split_variable autotune rewiring traffic sections",
    "picture task_context admission splitting fusing bounded_session failing",
    "resolvers paths placement inputs updates server process stacks progress local_config command_lines liveness builtin_model probe verdict profile_table ssh",
    "explain evaluation_watch stall towers manifest doctor piece_queue plan trace sight",
    "relapse restoring data guard hooks transport_hook sizes checkpoint_hook summary failures faults tether status board_watch summary_hook recorder",
    "pieces pace traced_steps status_text ring",
    "work following bring_up stall_watch follower ending vacant warm_up common_end tethered line_logs job_end status_watch status_page",
    "graph session launcher supervisor profiler tuning tracer",
    "worker ps joined evaluator bench experiment",
    "startup chaos",
    "runner library replay",
    "flags",
    "commands",
    "__main__",
)
LAYER = {name: number for number, row in enumerate(LAYERS) for name in row.split()}


def unit(path):
    """The name in the table that a file belongs to; `__init__` for the package's own."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported(tree):
    """(top-level package, unit or None) of every import statement, at any depth of the code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            is_package = node.module == "ps_train"
            names = [f"ps_train.{a.name}" for a in node.names] if is_package else [str(node.module)]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            yield top, rest.partition(".")[0] or None


SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_up(path):
    name = unit(path)
    assert name in LAYER, f"{name} is not in the table of layers. Give it a row."
    for top, target in imported(ast.parse(path.read_text(encoding="utf-8"))):
        if top == "tensorflow":
            assert name == "compat", f"{name} imports tensorflow; only compat may"
        if top == "absl":
            assert name in ("flags", "commands", "__main__"), f"{name} imports absl"
        if top == "ps_train" and target not in (None, name, "__version__"):
            assert target in LAYER, f"{name} imports {target}, which is not in the table of layers"
            assert LAYER[target] < LAYER[name], f"{name} imports {target}, which is not above it"


def test_the_launcher_side_does_not_import_tensorflow():
    names = (
        "cluster",
        "config",
        "resolvers",
        "flags",
        "commands.train",
        "commands.eval",
        "commands.status",
        "status",
        "launcher",
        "commands.bench",
        "commands.doctor",
        "commands.manifest",
        "commands.plan",
        "commands.trace",
        "doctor",
        "manifest",
        "bench",
        "commands.launch",
        "commands.experiment",
        "experiment.job",
        "experiment.plots",
        "supervisor",
    )
    there = [
        n
        for n in names
        if (PACKAGE / n.replace(".", "/")).exists() or (PACKAGE / f"{n.replace('.', '/')}.py").exists()
    ]
    code = (
        "import sys\n"
        + "".join(f"import ps_train.{n}\n" for n in there)
        + "print('tensorflow' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert run.stdout == "False\n"
