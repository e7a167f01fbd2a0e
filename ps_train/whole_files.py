"""Files that are there whole or not at all, and JSON that every reader takes: NaN and Inf, which it does not have, are null.

write_text("runs/e/report.html", text)              # whoever reads the file at that moment has the old one or the new one
write_json("report.json", {"loss": float("nan")})   # {"loss": null}
print(as_json(status))
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import uuid
from typing import Any

from ps_train.errors import UsageError


def finite(value: Any) -> Any:
    """A value for JSON: None in the place of what it does not have.

    >>> finite({"loss": float("nan"), "steps": [1, 2.5]})
    {'loss': None, 'steps': [1, 2.5]}
    """
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_json(value: Any, indent: int | None = None) -> str:
    """The text of a value."""
    return json.dumps(finite(value), indent=indent, allow_nan=False)


def write_json(path: str, content: Any) -> None:
    """Writes a value; raises OSError."""
    write_text(path, as_json(content, indent=2) + "\n")


def write_report(path: str, content: Any) -> None:
    """Writes what a command has found out to its --report_file; raises UsageError if that cannot be."""
    try:
        write_json(path, content)
    except OSError as error:
        raise UsageError(
            f"The report {path} cannot be written: {error.strerror}. Choose another --report_file."
        ) from None


def write_text(path: str, text: str) -> None:
    """Writes a text; raises OSError."""
    write_bytes(path, text.encode())


def write_bytes(path: str, content: bytes) -> None:
    """Writes a file, making its directory; raises OSError, and leaves what was there then."""
    directory = os.path.dirname(os.path.abspath(path))
    draft = os.path.join(directory, f".draft-{uuid.uuid4().hex}")
    os.makedirs(directory, exist_ok=True)
    try:
        with open(draft, "xb") as file:
            file.write(content)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(draft)
        raise
