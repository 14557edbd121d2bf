"""Text as bytes, and seeded batches of it."""

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .errors import DTypeError, HelixError, ShapeError
from .tensor import Tensor

__all__ = ["ByteBatches", "Text", "load_text"]

PACKAGE = Path(__file__).resolve().parent

# Modules that are one file in every Python since 3.11. A new release may change the text.
_STDLIB = (
    "argparse", "calendar", "configparser", "dataclasses", "difflib", "fractions",
    "functools", "heapq", "inspect", "optparse", "pdb", "pickle", "random", "shutil",
    "statistics", "subprocess", "tarfile", "textwrap", "threading", "tokenize", "typing",
)  # fmt: skip


@dataclass(frozen=True)
class Text:
    """A text as bytes: `name` says where it is from, `data` holds it as uint8 [length].

    >>> from tinygrad_helix.data import Text
    >>> text = Text("greeting", b"hello, hello")
    >>> len(text), text.data[:5].tolist()
    (12, [104, 101, 108, 108, 111])
    """

    name: str
    raw: bytes = field(repr=False)

    @property
    def data(self) -> np.ndarray:
        """The bytes as a read-only array."""
        return np.frombuffer(self.raw, np.uint8)

    @property
    def length(self) -> int:
        """How many bytes it has."""
        return len(self.raw)

    @property
    def sha256(self) -> str:
        """The hash of the bytes, which names the text exactly."""
        return hashlib.sha256(self.raw).hexdigest()

    def __len__(self) -> int:
        return len(self.raw)

    def __str__(self) -> str:
        return f"{self.name}: {self.length:,} bytes, sha256 {self.sha256[:12]}…"


def _read(name: str, path: Path) -> bytes:
    """The bytes of a file, or an error that says why there are none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise HelixError(
            f"there is no text at {name!r}. Give 'package', 'stdlib' or an existing file."
        ) from None
    except IsADirectoryError:
        raise HelixError(
            f"the text {name!r} is a folder. Give one file; join several first."
        ) from None
    except (OSError, ValueError) as error:
        raise HelixError(
            f"the text {name!r} cannot be read ({error}). Change its "
            "permissions, or give another file."
        ) from None


def _sources(name: str, paths: list[Path]) -> bytes:
    # A checkout on Windows may have other line ends; the text is to be the same.
    return b"".join(_read(name, path).replace(b"\r\n", b"\n") for path in paths)


def load_text(source: str | os.PathLike[str] = "package") -> Text:
    """The text of `source` as bytes.

    "package": the Python source of this package, files in the order of their paths; the
    same for everyone with the same version. "stdlib": that of 21 modules of Python's
    standard library. Anything else is the path of a file, whose bytes are taken as they
    are (a file called package: "./package").

    Errors: HelixError for a text that is missing, unreadable or empty.

    >>> from tinygrad_helix.data import load_text
    >>> load_text("package").name
    'package'
    """
    if not isinstance(source, (str, os.PathLike)):
        raise DTypeError(
            f"load_text takes 'package', 'stdlib' or a path; got {type(source).__name__}."
        )
    if source == "package":
        # An installed package holds the tutorials too; a checkout has them elsewhere.
        files = [p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE / "tutorials"]
        files.sort(key=lambda p: p.relative_to(PACKAGE).as_posix())
        text = Text("package", _sources("package", files))
    elif source == "stdlib":
        folder = Path(sysconfig.get_path("stdlib"))
        text = Text("stdlib", _sources("stdlib", [folder / f"{m}.py" for m in _STDLIB]))
    else:
        name = os.fspath(source)
        text = Text(name, _read(name, Path(name)))
    if not len(text):
        raise HelixError(f"the text {text.name!r} is empty. Give one with some bytes.")
    return text


class ByteBatches(Iterator[tuple[Tensor, Tensor]]):
    """(tokens, targets), each int64 [B, T]: windows of the text; target t is token t + 1.

    Endless. The windows of batch number `step` depend on the text, the shape, the seed
    and that number alone: two iterators give the same, and one that is set to a `step`
    goes on from there.

    Errors: ShapeError for B < 1, T < 1, or a text of fewer than T + 1 bytes.

    >>> from tinygrad_helix.data import ByteBatches, Text
    >>> batches = ByteBatches(Text("digits", b"0123456789"), batch=2, seq=4, seed=0)
    >>> tokens, targets = next(batches)
    >>> tokens.shape, bool((tokens + 1 == targets).data.all())
    ((2, 4), True)
    """

    def __init__(self, text: Text, batch: int, seq: int, seed: int = 0) -> None:
        if not isinstance(text, Text):
            raise DTypeError(
                f"ByteBatches takes a Text; got {type(text).__name__}. Use load_text()."
            )
        numbers: dict[str, Any] = {"batch": batch, "seq": seq, "seed": seed}
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise DTypeError(
                    f"ByteBatches takes an int as {name}; got {type(value).__name__}."
                )
            least = 0 if name == "seed" else 1
            if value < least:
                raise ShapeError(f"ByteBatches got {name}={value}. Give at least {least}.")
        if len(text) < seq + 1:
            raise ShapeError(
                f"the text {text.name!r} has {len(text)} bytes; windows of {seq} tokens "
                f"with their targets need at least {seq + 1}. Give a longer text or a "
                "shorter seq."
            )
        self.text = text
        self.batch = int(batch)
        self.seq = int(seq)
        self.seed = int(seed)
        self.step = 0

    def __next__(self) -> tuple[Tensor, Tensor]:
        generator = np.random.default_rng((self.seed, self.step))
        self.step += 1
        starts = generator.integers(0, len(self.text) - self.seq, self.batch)
        windows = self.text.data[starts[:, None] + np.arange(self.seq + 1)]  # [B, T + 1]
        # Arrays of their own: the tape counts the whole buffer of what it saves.
        tokens, targets = windows[:, :-1], windows[:, 1:]
        return Tensor(tokens.astype(np.int64)), Tensor(targets.astype(np.int64))
