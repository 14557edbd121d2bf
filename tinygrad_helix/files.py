"""Writing a file: all of it, or an error that says what to do."""

import os
from pathlib import Path

from .errors import HelixError

__all__ = ["write_file"]


def write_file(
    path: str | os.PathLike[str], data: bytes | str, make_folder: bool = False
) -> Path:
    """Write bytes, or text as UTF-8 with lines that end the same way everywhere;
    with `make_folder` the folder too, where there is none yet.

    Errors: HelixError for what cannot be written.
    """
    path = Path(path)
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            data if isinstance(data, bytes) else data.encode("utf-8", "replace")
        )
    except OSError as error:
        raise HelixError(
            f"{str(path)!r} cannot be written ({error.strerror}). Choose another name, or "
            "a folder that exists and that you may write to."
        ) from None
    return path
