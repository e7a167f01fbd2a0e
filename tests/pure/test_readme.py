"""The README against the code: its command lines are valid, its tables are complete, what it names is there."""

import difflib
import pathlib
import re
import shlex

import pytest

import ps_train
from ps_train import __main__, commands, errors, flags
from ps_train.cluster import JOBS, TaskId
from ps_train.commands import train
from ps_train.reports import Report

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
MAX_LINES = 590  # besides the rows of tables, which have to be complete


def section(title):
    """The text below a heading, down to the next one."""
    match = re.search(
        rf"(?ms)^#+ {re.escape(title)}\n(.*?)(?=^##|\Z)", re.sub(r"(?m)^# (?=\w+\.py$)", "", TEXT)
    )
    assert match, f"no section {title!r}"
    return match[1]


def blocks(language):
    """Fenced blocks of a language, without their indentation."""
    found = re.findall(rf"(?ms)^( *)```{language}\n(.*?)^ *```$", TEXT)
    return [re.sub(rf"(?m)^{indent}", "", body) for indent, body in found]


def table(title):
    """Rows of the first table in a section, without its head, as lists of cells."""
    rows = [line.strip("| ").split(" | ") for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def commands_shown():
    """(environment, arguments) of each ps_train command line in a `sh` block."""
    found = []
    for words in (
        shlex.split(line, comments=True) for line in re.split(r"(?m)(?<=[^\\,])\n", joined_shell())
    ):
        env = {}
        while words and re.match(r"[A-Z_]+=", words[0]):
            name, _, value = words.pop(0).partition("=")
            env[name] = value
        if words[:3] == ["python", "-m", "ps_train"]:
            found.append((env, words[3:]))
    return found


def joined_shell():
    return re.sub(r"\\\n\s*", " ", "\n".join(blocks("sh")))


@pytest.fixture
def reader_folder(tmp_path, monkeypatch):
    """The checkout as the reader has it, with the README's files saved beside it."""
    for name in ("examples", "flags"):
        (tmp_path / name).symlink_to(ROOT / name)
    for block in blocks("python"):
        name = block.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(block)
    monkeypatch.chdir(tmp_path)


def test_commands_are_found():
    assert len(commands_shown()) >= 9
    assert joined_shell().count("python -m ps_train") == len(commands_shown())


@pytest.mark.parametrize("env, args", commands_shown(), ids=lambda value: " ".join(value)[:60])
def test_command_is_valid(env, args, reader_folder):
    values, words = flags.parse(args)
    command = __main__.pick_command(words)
    if command == "train":
        assert train.make_plan(values, env)
    else:
        assert commands.load(command).__globals__["make_plan"](values, *__main__.arguments(command, words))


def test_python_blocks_compile_and_name_their_file():
    for block in blocks("python"):
        assert re.match(r"# \w+\.py\n", block), block[:60]
        compile(block, block.splitlines()[0], "exec")


def test_every_flag_is_in_the_table_with_its_default():
    specs = [spec for group in flags.GROUPS.values() for spec in group]
    rows = {name: default for name, default, _ in table("Flags")}
    assert list(rows) == [f"`--{spec.name}`" for spec in specs]
    for spec in specs:
        default = rows[f"`--{spec.name}`"]
        if spec.default is None:
            assert default and "`" not in default, spec.name
        else:
            number = isinstance(spec.default, float)
            assert default == (f"`{spec.default:g}`" if number else f"`{str(spec.default).lower()}`"), (
                spec.name
            )


def test_defaults_in_the_text_of_the_failures():
    for name, secs in re.findall(r"`--(\w+_timeout_secs)` \((\d+)\)", TEXT):
        assert float(secs) == flags.make_flags()[name].value


def test_every_exit_status_is_in_the_table():
    codes = re.findall(r"\d+", " ".join(row[0] for row in table("Exit status")))
    assert {int(code) for code in codes} == {
        value for name, value in vars(errors).items() if name.startswith("EXIT_")
    }


def test_every_key_of_the_report_is_in_the_table():
    keys = re.findall(r"`(\w+)`", " ".join(row[0] for row in table("Report file")))
    assert sorted(keys) == sorted(Report(TaskId("worker", 0)).as_dict(0))


def test_every_job_is_in_the_table_of_roles():
    assert [row[0].strip("`") for row in table("Roles")] == list(JOBS)


@pytest.mark.parametrize("title, pattern", [("Examples", "examples/*.py"), ("Flagfiles", "flags/*.flags")])
def test_every_file_is_in_its_table(title, pattern):
    rows = [row[0] for row in table(title)]
    links = re.findall(r"\(([^)]*)\)", " ".join(rows))
    assert sorted(links) == sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern))


def test_every_feature_has_an_example_and_a_test():
    rows = table("What there is")
    assert len(rows) >= 7
    for what, _, example, test in rows:
        assert re.fullmatch(r"(\[[^\]]+\]\((examples|flags|tests)/[^)]+\)(, )?)+", example), what
        assert re.fullmatch(r"(\[test_\w+\.py\]\(tests/\w+/test_\w+\.py\)(, )?)+", test), what


EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.*") if path.suffix != ".html")  # a report's


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_is_run_by_a_test_and_is_short(path):
    tests = [*ROOT.glob("tests/cluster/test_*.py"), *ROOT.glob("tests/graph/test_*.py")]
    assert any(path.name in test.read_text() for test in tests), "no test names it"
    assert len(path.read_text().splitlines()) <= 160


def test_results_are_those_that_the_examples_state():
    for row in table("Examples"):
        docstring = (ROOT / re.search(r"\((.*?)\)", row[0])[1]).read_text().split('"""')[1]
        for number in re.findall(r"\d[\d.]*%?", row[-1]):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", docstring), f"{row[0]}: {number}"


def test_the_diff_is_that_of_the_two_scripts():
    before, after = (
        (ROOT / "examples" / name).read_text().splitlines()
        for name in ("legacy_script_before.py", "legacy_script.py")
    )
    changes = [line for line in difflib.unified_diff(before, after, n=0, lineterm="")][2:]
    changes = [line for line in changes if not line.startswith("@@")]
    assert blocks("diff")[0].splitlines() == changes


def test_links_lead_somewhere():
    headings = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"(?m)^#+ (.*)$", TEXT)
    }
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        if target.startswith("#"):
            assert target[1:] in headings, target
        else:
            assert (ROOT / target).exists(), target


def test_paths_in_the_text_exist():
    for path in re.findall(r"(?<![\w/])(?:examples|flags|tests|ps_train)/[\w/]+\.\w+", TEXT):
        assert (ROOT / path).exists(), path


def test_public_names_exist():
    names = set(re.findall(r"\bps_train\.([A-Z]\w*|replica_device_setter)", TEXT))
    assert names <= set(ps_train.__all__) and len(names) >= 7


def test_variables_are_read_by_the_code():
    paths = [*(ROOT / "ps_train").rglob("*.py"), *(ROOT / "tests/cluster").glob("*.py")]
    source = "\n".join(path.read_text() for path in paths)
    for name in set(re.findall(r"\b(?:PS_TRAIN|TF)_[A-Z_]+\b", TEXT)):
        assert name in source, name


def test_it_is_a_manual_and_not_a_book():
    assert len([line for line in TEXT.splitlines() if not line.lstrip().startswith("|")]) <= MAX_LINES
    assert "/tmp" not in TEXT and "/opt/" not in TEXT
    assert not re.findall(r"(?<![\w.:/])/\w+/", TEXT), "a path of one machine"


def test_the_failure_matrix_has_no_empty_cell_and_names_real_tests():
    rows = [
        line.split("|")[1:-1] for line in section("The failure matrix").splitlines() if line.startswith("|")
    ][2:]
    faults = (ROOT / "tests/cluster/faults.py").read_text()
    seen = set()
    for who, fault, outcome, _, lost, test in rows:
        assert who.strip() and fault.strip() and outcome.strip() and lost.strip() and test.strip(), (
            who,
            fault,
        )
        seen.add(who.strip())
        for cell in re.findall(r"(?:ps|chief|worker)-(\w+)", test):
            assert f'"{cell}"' in faults, cell
    assert seen == {"ps", "chief", "worker", "evaluator", "launcher"}
