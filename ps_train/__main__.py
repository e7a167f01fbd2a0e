"""`python -m ps_train [COMMAND] [flags]`, also installed as `ps_train`.

`main` is the boundary at which every error that ps_train raises on purpose becomes its message on stderr and its exit
status. A user's mistake is answered before TensorFlow is imported, and so is a package that is not installed: nothing but
the standard library is imported before `main` looks.
"""

from __future__ import annotations

import io
import os
import sys

import ps_train

if os.path.basename(sys.argv[0]) == "ps_train":  # the installed command
    ps_train._leave_at_signals()

import signal
import traceback
from collections.abc import Sequence

from ps_train import __version__, commands, packages, process
from ps_train.errors import EXIT_DONE, EXIT_PERMANENT, EXIT_SIGINT, PsTrainError, UsageError
from ps_train.wording import did_you_mean

INTRODUCTION = """\
ps_train trains TensorFlow graphs with parameter servers.

Usage: python -m ps_train [COMMAND] [flags]
"""

EXAMPLES = """
Examples:
  python -m ps_train
      the built-in model on a local cluster of 1 ps and 2 workers
  python -m ps_train --model=mine.py --num_workers=4 --update=sync --train_steps=1000 --train_dir=runs/a
      your model, four workers, synchronous updates
  python -m ps_train --model=mine.py --ps_hosts=a:2222 --worker_hosts=b:2222,c:2222 --job_name=worker --task_index=1
      one task of a cluster; start one for each host:port, with the same lists everywhere
  python -m ps_train launch --hosts=a:2,b:2 --model=mine.py --train_steps=1000 --train_dir=runs/a
      the same, all tasks started over ssh; launch --num_workers=2 -- python script.py starts a script of tf.distribute
  python -m ps_train eval --model=mine.py --train_dir=runs/a
      metrics of the newest checkpoint

Exit status: 0 done; 1 a mistake in flags or model; 138 a peer or the network was lost, worth a restart;
130 and 143 stopped by SIGINT and SIGTERM."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line, without the program's name; gives the exit status and prints no traceback of a mistake."""
    is_debug = False
    try:
        packages.check(["absl"])
        from ps_train import flags

        values, words = flags.parse(sys.argv[1:] if argv is None else argv)
        is_debug = bool(values["debug"].value)
        if values["help"].value:
            commands.print_text(help_text())
            return EXIT_DONE
        if values["version"].value:
            commands.print_text(f"ps_train {__version__}")
            return EXIT_DONE
        command = pick_command(words)
        if command != "doctor":  # which tells it in its own way
            packages.check(directories=_model_directories(values["model"].value))
        run_command = commands.load(command)
        if signal.getsignal(signal.SIGINT) is ps_train._leave:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run_command(values, *arguments(command, words))
    except PsTrainError as error:
        if is_debug and not isinstance(error, UsageError):
            traceback.print_exception(error)
        # In one piece: print writes the end of a line by itself, and mpirun's ranks share their stderr.
        sys.stderr.write("".join(f"ps_train: {line}\n" for line in str(error).splitlines()))
        return error.exit_status
    except (ImportError, AttributeError) as error:
        explained = packages.explain(error, with_traceback=True) or packages.explain_missing(error)
        if explained is None:
            raise
        print(f"ps_train: {explained}", file=sys.stderr)
        return EXIT_PERMANENT
    except KeyboardInterrupt:
        print("ps_train: Stopped by SIGINT.", file=sys.stderr)
        return EXIT_SIGINT


def pick_command(words: Sequence[str]) -> str:
    """The command that the words beside the flags name; raises `UsageError`."""
    if not words:
        return "train"
    from ps_train import flags

    command, *more = words
    is_script = command == "launch" and more[:1] == ["--"]
    if is_script and not more[1:]:
        raise UsageError(
            "There is no command after --. Expected one, such as: launch --num_workers=2 -- python script.py"
        )
    for word in [] if is_script else words:
        name, equals, _ = word.partition("=")
        if equals and name in flags.NAMES:
            raise UsageError(f"{word!r} has no dashes. To set that flag, write --{word}.")
    file = next((word for word in words if not is_script and word.endswith(".py")), None)
    if file:
        raise UsageError(f"{file!r} stands by itself. To use the model in that file, write --model={file}.")
    known = ", ".join(commands.COMMANDS)
    if command.lower() in ("true", "false"):
        raise UsageError(
            f"{command!r} stands by itself. Expected a boolean flag as --flag, --noflag or --flag={command}."
        )
    if command not in commands.COMMANDS:
        guess = did_you_mean(command, commands.COMMANDS)
        raise UsageError(f"Unknown command {command!r}. {guess}Expected one of {known}, or none for train.")
    if more and command == "launch" and not is_script:
        raise UsageError(
            f"There is {more[0]!r} after the command launch. To launch a script, put -- before its command."
        )
    if more and not is_script and command != "trace":
        raise UsageError(
            f"There is {more[0]!r} after the command {command}. Expected flags only, such as --train_steps=5."
        )
    return command


def arguments(command: str, words: Sequence[str]) -> list[list[str]]:
    """What the command is given beside the flags: of launch, a script's command; of trace, the files."""
    return {"launch": [[*words[2:]]], "trace": [[*words[1:]]]}.get(command, [])


def help_text() -> str:
    """What --help prints."""
    from ps_train import flags

    lines = ["", "Commands:", *(f"  {name:<24}{meaning}" for name, meaning in commands.COMMANDS.items())]
    return INTRODUCTION + "\n".join(lines + flags.help_lines()) + "\n" + EXAMPLES


def _model_directories(model: str | None) -> list[str]:
    """The directory that loading the model will put in front of the path."""
    return [os.path.dirname(os.path.abspath(model))] if model and model.endswith(".py") else []


def run() -> None:
    """The `ps_train` command."""
    for stream in (
        sys.stdout,
        sys.stderr,
    ):  # what their encoding lacks, such as Keras' bars, is shown in another way
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    status = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is over
    process.end(status)


if __name__ == "__main__":
    run()
