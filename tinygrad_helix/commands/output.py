"""What several commands write: JSON, versions, and text as far as stdout can show it."""

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from ..errors import HelixError
from ..report import made_with, plain

__all__ = ["check_writable", "unicode_stdout", "versions", "write_json"]


def unicode_stdout() -> bool:
    """Whether stdout can show the bars and arrows that go beyond ASCII."""
    try:
        "▁█…→".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def check_writable(file: str) -> None:
    """Refuse a --json FILE that cannot be written, before any work is done for it."""
    there = os.path.exists(file)
    try:
        with open(file, "a"):
            pass
        if not there:  # a run that fails leaves nothing
            os.unlink(file)
    except OSError as error:
        raise HelixError(
            f"--json {file!r} cannot be written ({error.strerror}). Choose another file."
        ) from None


def write_json(value: Any, file: str) -> None:
    """`value` as JSON into `file`, or to stdout for "-"."""
    text = json.dumps(plain(value), indent=1, allow_nan=False)
    if file == "-":
        print(text)
    else:
        Path(file).write_text(text + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """Versions of the package, Python and NumPy, and the platform."""
    return made_with()["versions"] | {"platform": platform.platform()}
