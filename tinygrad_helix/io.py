"""`save` and `load`: dicts of Tensors, arrays and numbers, in npz or safetensors files.

A file holds every array once, under its dotted name, and one text in JSON that says how
the dict was built of them. Nothing is pickled: loading a file runs no code of the file's.
Both kinds can be read without this package (`numpy.load`, `safetensors`), and `load` takes
what other programs wrote.

In the JSON lists, strings, bools, ints, finite floats and null stand for themselves; all
else is an object of one key, its kind: {"tensor": name}, {"array": name}, {"scalar":
name}, {"dict": [[key, value], …]}, {"tuple": […]}, {"float": "inf"}.
"""

import contextlib
import json
import math
import os
import secrets
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .backend import backend_of, is_array
from .errors import DTypeError, HelixError
from .tensor import Tensor

__all__ = ["load", "save"]

METADATA = (
    "__metadata__"  # the name of the JSON in an npz file; safetensors reserves it too
)
FORMAT = "tinygrad_helix"
VERSION = 1
DEPTH = 100
BITS = 14_000  # of an int: Python reads no longer one from text without being told to
NAME = 60_000  # bytes of a dotted name: a zip file has 65,535 for it, and more for ".npy"


def save(obj: Mapping[Any, Any], path: str | os.PathLike[str]) -> None:
    """Write a dict of Tensors, arrays and numbers to `path`, as one file.

    A path that ends in .safetensors gets that format (from the package safetensors, the
    extra "io"), any other the npz of NumPy. `obj` has strings or ints as keys; its values
    are Tensors and arrays of floats, ints or bools, NumPy scalars, int, float, bool, str,
    None, and dicts, lists and tuples of all these: what `state_dict()` of a module, an
    optimizer or a scheduler gives, alone or together.

    Of a Tensor its values are written, with their dtype and shape: neither
    requires_grad nor grad, and of a slice not what it was cut from. Values that several
    names share (the same memory, shape and strides) are written once and are one object
    again after `load`. The entry of a value is its dotted name, "model.first.weight".

    The file is written beside `path` and then takes its place: after an error, `path` is
    as it was.

    Errors: DTypeError for a value or key that cannot be saved, HelixError for two values
    with one dotted name or a name of over 60,000 bytes, for an int of over 14,000 bits, for
    nesting deeper than 100, for a path that cannot be written to and where safetensors is
    missing.

    >>> import os, tempfile
    >>> import tinygrad_helix as th
    >>> model = th.nn.Linear(2, 3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.npz")
    ...     th.save({"model": model.state_dict(), "step": 7}, path)
    ...     state = th.load(path)
    >>> state["step"], model.load_state_dict(state["model"])
    (7, ([], []))
    """
    shown = _path("save", path)
    if not isinstance(obj, Mapping):
        hint = " Give its state_dict()." if hasattr(obj, "state_dict") else ""
        raise DTypeError(
            f"save takes a dict of names to Tensors; got {type(obj).__name__}.{hint}"
        )
    encoder = _Encoder()
    tree = encoder.encode(obj, ())
    text = json.dumps({"format": FORMAT, "version": VERSION, "tree": tree})
    write = _write_npz
    if shown.suffix == ".safetensors":
        _safetensors(shown)
        write = _write_safetensors

    target = Path(os.path.realpath(shown))  # a link stays a link
    temporary = target.with_name(f".save-{secrets.token_hex(8)}.tmp")
    try:
        old = target.exists()
        if old and not (target.is_file() and os.access(target, os.W_OK)):
            raise HelixError(
                f"save cannot write to {str(shown)!r}: what is there is a folder, a device "
                "or a file that is write-protected. Give another path."
            )
        temporary.touch(exist_ok=False)
        mode = (target if old else temporary).stat().st_mode
        write(temporary, encoder.arrays, text)
        temporary.chmod(stat.S_IMODE(mode))
        os.replace(temporary, target)
    except OSError as error:
        raise HelixError(
            f"save cannot write {str(shown)!r} ({error}). Give a path in a folder that "
            "exists, has room and can be written to. What was there is as it was."
        ) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def load(path: str | os.PathLike[str]) -> dict[Any, Any]:
    """Read what `save` wrote: the same dict, with Tensors, arrays and numbers anew.

    Tensors own their memory, are on the CPU and require no gradient: put them into a
    model by `load_state_dict`. Names that shared a value share it again, as one object.
    Of a file that another program wrote every entry becomes a Tensor, in a flat dict, and
    in this machine's order of bytes.

    Errors: HelixError for a file that is missing, damaged, of another kind (a pickle is
    never opened) or too large for the memory, or a missing safetensors; DTypeError for a
    foreign file with an entry that `save` could not write.

    >>> import os, tempfile
    >>> import numpy as np, tinygrad_helix as th
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "foreign.npz")
    ...     np.savez(path, x=np.arange(3))
    ...     th.load(path)
    {'x': Tensor([0, 1, 2], shape=(3,), int64)}
    """
    shown = _path("load", path)
    kind, read = "npz", _read_npz
    if shown.suffix == ".safetensors":
        _safetensors(shown)
        kind, read = "safetensors", _read_safetensors
    try:
        with shown.open("rb"):
            pass  # so that a missing file is told from a damaged one
    except OSError as error:
        raise HelixError(
            f"load cannot read {str(shown)!r} ({error}). Give the path of a file that save "
            "wrote."
        ) from None
    # The bytes are anybody's: what goes wrong below says that, whatever it is.
    try:
        arrays, text = read(shown)
        if text is not None:
            return _decoded(text, arrays, shown)
    except HelixError:
        raise
    except MemoryError as error:
        raise HelixError(
            f"{str(shown)!r} holds more than there is memory for, or says so because it is "
            f"damaged ({error}). Nothing was loaded."
        ) from None
    except Exception as error:
        raise HelixError(
            f"{str(shown)!r} cannot be read as {kind} ({type(error).__name__}: {error}). "
            "It is damaged or of another kind: give the path of a file that save wrote."
        ) from None
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
            raise DTypeError(
                f"{str(shown)!r} was written by another program, and its entry {name!r} is "
                f"{array.dtype}; floats and ints of up to 64 bits and bools can be loaded. "
                "Read it by NumPy."
            )
    return {
        name: Tensor(array, array.dtype.newbyteorder("=")) for name, array in arrays.items()
    }


def _path(what: str, path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise DTypeError(f"{what} takes a path; got {type(path).__name__}.")
    if "\0" in str(path):
        raise HelixError(f"{what} got the path {str(path)!r}. No file's name has a NUL.")
    return Path(path)


# --- a dict as JSON and named arrays, and back


class _Encoder:
    """Turns values into JSON, and collects the arrays among them by name, each once."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self._names: dict[Any, str] = {}  # where an array's values lie -> its name

    def encode(self, value: Any, at: tuple[Any, ...]) -> Any:
        """`value`, found under the keys `at`, as what JSON can hold."""
        if len(at) > DEPTH:
            raise HelixError(
                f"save got a dict that is nested more than {DEPTH} deep, or contains "
                "itself. Give a flatter one. Nothing was written."
            )
        kind = type(value)
        if kind is int and value.bit_length() > BITS:
            raise HelixError(
                f"save: {_shown(at)} is an int of {value.bit_length()} bits; {BITS} can be "
                "saved. Save it as a string. Nothing was written."
            )
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": repr(value)}
        if isinstance(value, Tensor):
            array = backend_of(value.data).to_numpy(value.data)
            return {"tensor": self._name(array, at)}
        if is_array(value):
            return {"array": self._name(backend_of(value).to_numpy(value), at)}
        if isinstance(value, np.generic):
            return {"scalar": self._name(np.asarray(value), at)}
        if isinstance(value, Mapping):
            for key in value:
                if type(key) not in (str, int):
                    raise DTypeError(
                        f"save: {_shown(at)} has the key {key!r}, a {type(key).__name__}. "
                        "Keys are strings or ints. Nothing was written."
                    )
                if type(key) is int and key.bit_length() > BITS:
                    raise HelixError(
                        f"save: {_shown(at)} has an int of {key.bit_length()} bits as a "
                        f"key; {BITS} can be saved. Nothing was written."
                    )
            pairs = [[key, self.encode(item, (*at, key))] for key, item in value.items()]
            return {"dict": pairs}
        if kind in (list, tuple):
            items = [self.encode(item, (*at, i)) for i, item in enumerate(value)]
            return items if kind is list else {"tuple": items}
        hint = ": give its state_dict()" if hasattr(value, "state_dict") else ""
        raise DTypeError(
            f"save: {_shown(at)} is a {kind.__name__}{hint}. Tensors, arrays, numbers, "
            "strings, None, and dicts, lists and tuples of these can be saved. Nothing was "
            "written."
        )

    def _name(self, array: np.ndarray, at: tuple[Any, ...]) -> str:
        """The name under which the values of `array` are written."""
        dtype = array.dtype
        plain = type(array) in (np.ndarray, np.memmap) and dtype.isnative
        if not plain or dtype.kind not in "fiub" or dtype.itemsize > 8:
            raise DTypeError(
                f"save: {_shown(at)} is a {type(array).__name__} of {dtype} ({dtype.str}). "
                "Arrays of floats, ints (up to 64 bits) or bools in this machine's order "
                "of bytes can be saved: convert it. Nothing was written."
            )
        address = array.__array_interface__["data"][0]
        key = (address, array.shape, array.strides, dtype)
        if key not in self._names:
            name = ".".join(map(str, at))
            if name in self.arrays or name == METADATA:
                raise HelixError(
                    f"save: {_shown(at)} would be written as {name!r}, a name that is "
                    "taken already. Rename one. Nothing was written."
                )
            if any(c in "\0\\" or "\ud800" <= c <= "\udfff" for c in name):
                raise HelixError(
                    f"save: {_shown(at)} would be written as {name!r}; a name in a file "
                    "has no NUL, backslash or half of a character. Rename it. Nothing was "
                    "written."
                )
            if len(name.encode()) > NAME:
                raise HelixError(
                    "save: a value would be written under a name of "
                    f"{len(name.encode()):,} bytes ({name[:40]}…); at most {NAME:,} work. "
                    "Use shorter keys. Nothing was written."
                )
            self._names[key] = name
            self.arrays[name] = array
        return self._names[key]


def _shown(at: tuple[Any, ...]) -> str:
    """The place of a value as it would be written in Python."""
    return "the dict" + "".join(f"[{key!r}]" for key in at)


def _decoded(text: str, arrays: dict[str, np.ndarray], file: Path) -> dict[Any, Any]:
    """The dict that was saved as `text` and `arrays`."""
    content = json.loads(text)
    if content["format"] == FORMAT and content["version"] > VERSION:
        raise HelixError(
            f"{str(file)!r} is of version {content['version']}, and this tinygrad_helix "
            f"reads up to {VERSION}. Install a newer one."
        )
    tensors: dict[str, Tensor] = {}

    def decode(code: Any) -> Any:
        if isinstance(code, list):
            return [decode(item) for item in code]
        if not isinstance(code, dict):
            return code
        ((kind, body),) = code.items()
        match kind:
            case "dict":
                return {key: decode(item) for key, item in body}
            case "tuple":
                return tuple([decode(item) for item in body])
            case "float":
                return float(body)
            case "array":
                return arrays[body]
            case "scalar":
                return arrays[body][()]
            case "tensor":
                if body not in tensors:
                    tensors[body] = Tensor(arrays[body])
                return tensors[body]
        raise ValueError(f"its JSON has a value of the unknown kind {kind!r}")

    return decode(content["tree"])


# --- the two kinds of file


def _write_npz(file: Path, arrays: dict[str, np.ndarray], text: str) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in {METADATA: np.array(text.encode()), **arrays}.items():
            # An entry made of its name alone has no date: the same dict, the same bytes.
            entry = zipfile.ZipInfo(f"{name}.npy")
            with archive.open(entry, "w", force_zip64=True) as stream:
                whole = np.asarray(array, order="C")
                np.lib.format.write_array(stream, whole, allow_pickle=False)


def _read_npz(file: Path) -> tuple[dict[str, np.ndarray], str | None]:
    arrays = {}
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            if not name.endswith(".npy"):
                raise ValueError(f"its entry {name!r} is no array")
            with archive.open(name) as stream:
                arrays[name.removesuffix(".npy")] = np.lib.format.read_array(
                    stream, allow_pickle=False
                )
                if stream.read(1):  # at its end the checksum is compared
                    raise ValueError(f"its entry {name!r} is longer than its array")
    text = arrays.pop(METADATA, None)
    return arrays, None if text is None else text.item().decode()


def _safetensors(file: Path) -> Any:
    try:
        import safetensors.numpy
    except ModuleNotFoundError:
        raise HelixError(
            f"{str(file)!r} is a file for the package safetensors, which is not installed. "
            'Install it (python -m pip install "tinygrad_helix[io]"), or use a path that '
            "ends in .npz."
        ) from None
    return safetensors


def _write_safetensors(file: Path, arrays: dict[str, np.ndarray], text: str) -> None:
    safetensors = _safetensors(file)
    whole = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    try:
        safetensors.numpy.save_file(whole, file, metadata={FORMAT: text})
    except safetensors.SafetensorError as error:
        raise OSError(str(error)) from None


def _read_safetensors(file: Path) -> tuple[dict[str, np.ndarray], str | None]:
    with _safetensors(file).safe_open(file, framework="np") as content:
        arrays = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
        return arrays, (content.metadata() or {}).get(FORMAT)
