"""What several commands write: JSON, versions, and text as far as stdout can show it."""

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from ..errors import HelixError
from ..files import write_file
from ..report import made_with, plain
from ..viz.text import unicode_shown as unicode_stdout

__all__ = [
    "check_folder",
    "check_writable",
    "colour_stdout",
    "unicode_stdout",
    "versions",
    "write_json",
]


def colour_stdout() -> bool:
    """Whether stdout is a terminal, and its user has not asked for no colours (see
    https://no-color.org): the one environment variable that the package reads."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written to, before any work is done for it."""
    if not folder.is_dir():
        raise HelixError(f"the folder {str(folder)!r} does not exist. Make it first.")
    if not os.access(folder, os.W_OK):
        raise HelixError(
            f"the folder {str(folder)!r} cannot be written to. Choose another one."
        )


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
        write_file(file, text + "\n")


def versions() -> dict[str, str]:
    """Versions of the package, Python and NumPy, and the platform."""
    return made_with()["versions"] | {"platform": platform.platform()}
