"""save and load: what they refuse, and what an error leaves behind."""

import json
import os
import pickle
import stat
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from test_io import BOTH, round_trip, safetensors, same

import tinygrad_helix as th
from tinygrad_helix.errors import DTypeError, HelixError, ShapeError
from tinygrad_helix.nn import Linear

# --- what cannot be saved


def nested(depth):
    obj: dict = {}
    for _ in range(depth):
        obj = {"in": obj}
    return obj


def itself():
    obj: dict = {}
    obj["a"] = [obj]
    return obj


class Masked(np.ndarray):
    pass


@pytest.mark.parametrize(
    ("obj", "error", "match"),
    [
        (th.ones(2), DTypeError, "takes a dict.*got Tensor"),
        ([th.ones(2)], DTypeError, "got list"),
        (Linear(2, 2), DTypeError, r"got Linear\. Give its state_dict"),
        (
            {"m": [Linear(2, 2)]},
            DTypeError,
            r"the dict\['m'\]\[0\] is a Linear: give its st",
        ),
        ({"f": {"g": len}}, DTypeError, r"the dict\['f'\]\['g'\] is a builtin_function"),
        ({"s": {1, 2}}, DTypeError, "is a set"),
        ({"b": b"raw"}, DTypeError, "is a bytes"),
        ({"c": 1j}, DTypeError, "is a complex"),
        ({"p": Path("x")}, DTypeError, "is a PosixPath|is a WindowsPath"),
        ({(1, 2): 1}, DTypeError, r"the key \(1, 2\), a tuple"),
        ({"a": {True: 1}}, DTypeError, r"the dict\['a'\] has the key True, a bool"),
        ({None: 1}, DTypeError, "NoneType"),
        ({"o": np.array([None])}, DTypeError, r"\['o'\] is a ndarray of object"),
        ({"u": np.array(["a"])}, DTypeError, "<U1"),
        ({"u": np.str_("a")}, DTypeError, "<U1"),
        ({"z": np.ones(1, complex)}, DTypeError, "complex128"),
        ({"t": np.zeros(1, "datetime64[s]")}, DTypeError, "datetime64"),
        ({"e": np.zeros(1, ">f8")}, DTypeError, "order of bytes"),
        ({"l": np.zeros(1, np.longdouble)}, DTypeError, "64 bits"),
        ({"m": np.ma.masked_array([1.0], [True])}, DTypeError, "is a MaskedArray"),
        ({"m": np.ones(2).view(Masked)}, DTypeError, "is a Masked"),
        (
            {"a.b": th.ones(1), "a": {"b": th.ones(1)}},
            HelixError,
            "'a.b', a name that is t",
        ),
        ({1: th.ones(1), "1": th.ones(1)}, HelixError, r"\['1'\] would be written as '1'"),
        ({"__metadata__": th.ones(1)}, HelixError, "taken already"),
        ({"a\0b": th.ones(1)}, HelixError, "NUL"),
        ({"a\\b": th.ones(1)}, HelixError, "backslash"),
        ({"\ud800": th.ones(1)}, HelixError, "half of a character"),
        (nested(101), HelixError, "more than 100 deep"),
        ({"n": 10**5000}, HelixError, r"\['n'\] is an int of 16610 bits; 14000 can"),
        ({10**5000: 1}, HelixError, "an int of 16610 bits as a key"),
        ({"n" * 70_000: th.ones(1)}, HelixError, r"70,000 bytes \(nnn.*shorter keys"),
        ({"ä" * 35_000: th.ones(1)}, HelixError, "70,000 bytes"),
        (itself(), HelixError, "contains itself"),
    ],
)
@BOTH
def test_what_cannot_be_saved(obj, error, match, suffix, tmp_path):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"as it was")
    with pytest.raises(error, match=match):
        th.save(obj, path)
    assert path.read_bytes() == b"as it was" and len(os.listdir(tmp_path)) == 1


def test_nesting_to_the_limit(tmp_path):
    assert round_trip(nested(100), tmp_path / "x.npz") == nested(100)


# --- paths and errors


@BOTH
@pytest.mark.parametrize("raised", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_a_file_is_replaced_whole_or_not_at_all(raised, suffix, tmp_path, monkeypatch):
    path = tmp_path / f"x{suffix}"
    th.save({"n": 1}, path)
    before = path.read_bytes()

    def write_half(file, arrays, text):
        file.write_bytes(b"the first half")
        raise raised

    with monkeypatch.context() as patch:
        patch.setattr(th.io, f"_write_{suffix[1:]}", write_half)
        error = HelixError if isinstance(raised, OSError) else KeyboardInterrupt
        with pytest.raises(error) as caught:
            th.save({"n": 2}, path)
    if error is HelixError:
        assert "No space left" in str(caught.value) and "as it was" in str(caught.value)
    assert path.read_bytes() == before and os.listdir(tmp_path) == [path.name]
    th.save({"n": 2}, path)
    assert th.load(path) == {"n": 2} and os.listdir(tmp_path) == [path.name]


@BOTH
@pytest.mark.skipif(os.name != "posix", reason="a limit of POSIX")
def test_no_room_for_the_whole_file(suffix, tmp_path):
    import resource

    path = tmp_path / f"x{suffix}"
    th.save({"n": 1}, path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(HelixError, match="has room"):
            th.save({"x": np.zeros(100_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert th.load(path) == {"n": 1} and os.listdir(tmp_path) == [path.name]


@BOTH
@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_permissions_are_those_of_any_new_file_or_of_the_old_one(suffix, tmp_path):
    plain, path = tmp_path / "plain", tmp_path / f"x{suffix}"
    plain.touch()
    th.save({"x": th.ones(1)}, path)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    path.chmod(0o640)
    th.save({"x": th.ones(2)}, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@BOTH
def test_paths_that_cannot_be_written(suffix, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / f"folder{suffix}").mkdir()
    for path, match in [
        (tmp_path / "none" / f"x{suffix}", "No such file or directory"),
        (tmp_path / "file" / f"x{suffix}", "Not a directory"),
        (tmp_path / f"folder{suffix}", "is a folder"),
        (tmp_path / f"{'x' * 300}{suffix}", "too long"),
        (f"{tmp_path}/a\0{suffix}", "NUL"),
    ]:
        with pytest.raises(HelixError, match=match):
            th.save({"n": 1}, path)
    if os.path.exists("/dev/null"):
        with pytest.raises(HelixError, match="a device"):
            th.save({"n": 1}, "/dev/null")
        assert not os.path.isfile("/dev/null")
    with pytest.raises(DTypeError, match="takes a path; got int"):
        th.save({"n": 1}, 3)  # type: ignore[arg-type]
    assert sorted(os.listdir(tmp_path)) == ["file", f"folder{suffix}"]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write all")
def test_a_protected_file_or_folder_is_left_alone(tmp_path):
    path = tmp_path / "x.npz"
    th.save({"n": 1}, path)
    path.chmod(0o444)
    with pytest.raises(HelixError, match="write-protected"):
        th.save({"n": 2}, path)
    path.chmod(0o644)
    tmp_path.chmod(0o555)
    with pytest.raises(HelixError, match="Permission denied"):
        th.save({"n": 2}, path)
    tmp_path.chmod(0o755)
    assert th.load(path) == {"n": 1}


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def bad_files(folder):
    x = np.arange(3.0)
    trap = folder / "sprung"
    np.savez(folder / "object.npz", x=np.array([Trap(str(trap))], dtype=object))
    np.save(folder / "array.npy", x)
    (folder / "array.npy").rename(folder / "array.npz")
    (folder / "pickle.npz").write_bytes(pickle.dumps({"x": Trap(str(trap))}))
    with zipfile.ZipFile(folder / "zip.npz", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Trap(str(trap))))
    with zipfile.ZipFile(folder / "long.npz", "w") as archive:
        entry = BytesIO()
        np.save(entry, x)
        archive.writestr("x.npy", entry.getvalue() + b"more")
    (folder / "empty.npz").touch()
    (folder / "text.npz").write_text("hello, hello")
    (folder / "text.safetensors").write_text("hello, hello")
    good = folder / "good.npz"
    th.save({"x": x}, good)
    (folder / "short.npz").write_bytes(good.read_bytes()[:-30])
    good.unlink()
    for name, tree in [
        ("missing", {"dict": [["x", {"tensor": "y"}]]}),
        ("unknown", {"dict": [["x", {"pickle": "y"}]]}),
        ("keys", {"dict": [["x", {"tensor": "x", "array": "x"}]]}),
        ("pairs", {"dict": [["x"]]}),
        ("deep", None),
    ]:
        text = json.dumps({"format": "tinygrad_helix", "version": 1, "tree": tree})
        if name == "deep":  # beyond what any Python recurses into
            text = text.replace("null", "[" * 200_000 + "]" * 200_000)
        np.savez(folder / f"{name}.npz", x=x, __metadata__=np.array(text.encode()))
    np.savez(folder / "json.npz", __metadata__=np.array(b"{"))
    np.savez(folder / "number.npz", __metadata__=np.array(3))
    return trap


def test_files_that_cannot_be_read(tmp_path):
    trap = bad_files(tmp_path)
    names = sorted(os.listdir(tmp_path))
    assert len(names) == 16
    for name in names:
        if name.endswith(".safetensors") and safetensors is None:
            continue
        with pytest.raises(HelixError) as caught:
            th.load(tmp_path / name)
        message = str(caught.value)
        assert name in message and "damaged" in message, message
    assert not trap.exists()
    for path, match in [
        (tmp_path / "none.npz", "No such file"),
        (tmp_path, "Is a directory"),
        ("a\0b", "NUL"),
    ]:
        with pytest.raises(HelixError, match=match):
            th.load(path)
    with pytest.raises(DTypeError, match="got list"):
        th.load(["x.npz"])  # type: ignore[arg-type]


def test_a_file_of_a_later_version_says_so(tmp_path):
    text = json.dumps({"format": "tinygrad_helix", "version": 2, "tree": "?"})
    np.savez(tmp_path / "x.npz", __metadata__=np.array(text.encode()))
    with pytest.raises(HelixError, match=r"version 2, .* up to 1\. Install a newer"):
        th.load(tmp_path / "x.npz")


@BOTH
def test_a_damaged_file_is_noticed_or_harmless(suffix, tmp_path):
    path = tmp_path / f"x{suffix}"
    state = {"x": th.Tensor(np.arange(40.0)), "y": [np.arange(3), 1.5], "s": "text"}
    th.save(state, path)
    whole = path.read_bytes()
    for i in range(0, len(whole), 3):
        for bit in (1, 64):
            damaged = bytearray(whole)
            damaged[i] ^= bit
            path.write_bytes(damaged)
            try:
                got = th.load(path)
            except HelixError:
                continue
            if suffix == ".npz":  # which has checksums, as safetensors has not
                same(got, state)


def test_safetensors_is_asked_for_by_name_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    path = tmp_path / "x.safetensors"
    line = r'python -m pip install "tinygrad_helix\[io\]"'
    with pytest.raises(HelixError, match=line):
        th.save({"n": 1}, path)
    assert not path.exists()
    with pytest.raises(HelixError, match=line):
        th.load(path)
    assert round_trip({"n": 1}, tmp_path / "x.npz") == {"n": 1}


def test_a_state_that_does_not_fit_changes_nothing(tmp_path):
    path = tmp_path / "x.npz"
    th.save(Linear(2, 3).state_dict(), path)
    other = Linear(3, 2)
    before = other.weight.data.copy()
    with pytest.raises(ShapeError, match="wrong shapes"):
        other.load_state_dict(th.load(path))
    assert np.array_equal(other.weight.data, before)


# --- the ends of what fits


@BOTH
def test_the_longest_ints_and_names(suffix, tmp_path):
    name = "n" * 60_000
    obj = {"n": 2**13_999, "m": -(2**13_999), name: th.ones(1)}
    again = round_trip(obj, tmp_path / f"x{suffix}")
    assert again["n"] == obj["n"] and again["m"] == obj["m"]
    assert again[name].tolist() == [1]


def test_a_header_that_says_more_than_there_is_memory_for(tmp_path):
    path = tmp_path / "x.npz"
    entry = BytesIO()
    shape = {"descr": "<f8", "fortran_order": False, "shape": (10**15,)}
    np.lib.format.write_array_header_1_0(entry, shape)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", entry.getvalue())
    with pytest.raises(HelixError, match="more than there is memory for"):
        th.load(path)


def test_what_another_program_wrote_can_be_saved_again(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, a=np.array([1.5, 2.5], ">f8"), b=np.array([1, 2], ">i4"))
    loaded = th.load(path)
    assert loaded["a"].tolist() == [1.5, 2.5] and loaded["a"].dtype.isnative
    again = round_trip(loaded, path)
    assert again["b"].tolist() == [1, 2] and again["b"].dtype == np.int32


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="no longer float here")
def test_floats_that_cannot_be_saved_are_not_loaded(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, a=np.ones(1, np.longdouble))
    with pytest.raises(DTypeError, match=r"entry 'a' is float.*up to 64 bits"):
        th.load(path)
