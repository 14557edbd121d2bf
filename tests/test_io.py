"""save and load: what comes back, what a file holds, and what an error leaves behind."""

import json
import os
import pickle
import stat
import string
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import tinygrad_helix as th
from tinygrad_helix.errors import DTypeError, HelixError, ShapeError
from tinygrad_helix.nn import Linear, Module, Parameter
from tinygrad_helix.optim import AdamW, CosineDecay, LRScheduler

try:
    import safetensors.numpy
except ModuleNotFoundError:
    safetensors = None

needs_safetensors = pytest.mark.skipif(
    safetensors is None, reason='safetensors is not installed (extra "io")'
)
BOTH = pytest.mark.parametrize(
    "suffix", [".npz", pytest.param(".safetensors", marks=needs_safetensors)]
)


def same(got, want):
    """Equal in type, dtype, shape and every bit, keys in the same order."""
    if isinstance(want, th.Tensor):
        assert type(got) is th.Tensor and got.is_leaf and not got.requires_grad
        got, want = got.data, want.data
    if isinstance(want, (np.ndarray, np.generic)):
        assert type(got) is (np.ndarray if isinstance(want, np.ndarray) else type(want))
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        assert got.tobytes() == want.tobytes()
    elif isinstance(want, dict):
        assert type(got) is dict and list(got) == list(want)
        assert [type(k) for k in got] == [type(k) for k in want]
        for key in want:
            same(got[key], want[key])
    elif isinstance(want, (list, tuple)):
        assert type(got) is type(want) and len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            same(a, b)
    else:
        assert type(got) is type(want) and repr(got) == repr(want)


def round_trip(obj, path):
    th.save(obj, path)
    return th.load(path)


# --- values

DTYPES = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
]  # fmt: skip
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, min_side=0, max_side=3))
)
leaves = st.one_of(
    arrays.map(th.Tensor),
    arrays,
    st.sampled_from(DTYPES).flatmap(lambda dtype: npst.from_dtype(np.dtype(dtype))),
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
)
keys = st.one_of(st.text(string.ascii_letters + "αβ_-/ ", max_size=6), st.integers())
trees = st.dictionaries(
    keys,
    st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(keys, inner, max_size=3),
        ),
        max_leaves=8,
    ),
    max_size=4,
)


@BOTH
@given(tree=trees)
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_what_is_saved_comes_back(suffix, tmp_path, tree):
    path = tmp_path / f"any{suffix}"
    try:
        th.save(tree, path)
    except HelixError as error:
        assert "taken already" in str(error)  # {1: x, "1": y}
        return
    same(th.load(path), tree)


@BOTH
def test_each_dtype_and_layout(suffix, tmp_path):
    base = np.arange(24).reshape(2, 3, 4)
    state = {d: th.Tensor((base % 2).astype(d)) for d in DTYPES}
    state |= {f"{d} 0-d": th.Tensor(np.array(1, d)) for d in DTYPES}
    state |= {f"{d} empty": th.Tensor(np.zeros((0, 3), d)) for d in DTYPES}
    state["transposed"] = th.Tensor(base.T)
    state["backwards"] = th.Tensor(base[::-1, :, ::2])
    state["one for all"] = th.Tensor(np.broadcast_to(np.float32(3), (2, 5)))
    state["special"] = th.Tensor(np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324]))
    got = round_trip(state, tmp_path / f"x{suffix}")
    same(got, state)
    for x in got.values():
        assert x.data.flags.writeable and x.data.flags.c_contiguous
        assert th.memory.storage(x.data).nbytes == x.nbytes


@BOTH
def test_O46_a_slice_saves_only_itself(suffix, tmp_path):
    """https://github.com/pytorch/pytorch/issues/40157"""
    big = th.Tensor(np.zeros(1_000_000))
    weight = Parameter(np.ones((3, 3), np.float32))
    state = {
        "s": big[:1000],
        "0-d": th.Tensor(np.array(2.5)),
        "half": th.Tensor(np.array([1.5], np.float16)),
        "l1.weight": weight,
        "l2.weight": weight,
    }
    path = tmp_path / f"s{suffix}"
    got = round_trip(state, path)
    assert path.stat().st_size < 20_000
    assert got["l1.weight"] is got["l2.weight"]
    same(got, {name: th.Tensor(x.data) for name, x in state.items()})


@BOTH
def test_what_shares_memory_is_written_once_and_shared_again(suffix, tmp_path):
    big = np.arange(50_000.0)
    x = th.Tensor(big)
    state = {"a": x, "b": [x.detach(), big], "c": {"d": Parameter(big)}, "half": x[:25_000]}
    path = tmp_path / f"s{suffix}"
    got = round_trip(state, path)
    assert path.stat().st_size < 1.55 * big.nbytes
    assert got["a"] is got["b"][0] is got["c"]["d"]
    assert got["b"][1] is got["a"].data
    # A part of the same memory is another value, and is not shared again.
    assert not np.shares_memory(got["half"].data, got["a"].data)
    same(got["half"], x[:25_000])
    # The same memory in another shape or type too.
    got = round_trip({"a": x, "b": x.reshape(2, -1), "c": big.view("int64")}, path)
    assert got["b"].shape == (2, 25_000) and got["c"].dtype == np.int64
    # Equal values in memory of their own stay apart.
    got = round_trip({"a": th.Tensor([1.0]), "b": th.Tensor([1.0])}, path)
    assert got["a"] is not got["b"]


@BOTH
def test_values_alone_are_saved(suffix, tmp_path):
    x = th.tensor([1.0, 2.0], requires_grad=True)
    y = x * x
    y.sum().backward()
    got = round_trip({"x": x, "y": y}, tmp_path / f"x{suffix}")
    assert got["x"].grad is None and not got["x"].requires_grad
    assert got["y"].is_leaf and got["y"].tolist() == [1.0, 4.0]
    assert x.requires_grad and y.node is not None


class Shared(Module):
    def __init__(self):
        self.first, self.second = Linear(3, 3), Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).tanh())


@BOTH
def test_training_goes_on_from_a_file_bit_for_bit(suffix, tmp_path):
    def begin():
        model = Shared()
        parameters = list(model.parameters())
        groups = [{"params": parameters[:1], "lr": 0.1}, {"params": parameters[1:]}]
        optimizer = AdamW(groups, lr=0.2)
        return model, optimizer, LRScheduler(optimizer, CosineDecay(10))

    def train(model, optimizer, scheduler, generator, steps):
        for _ in range(steps):
            x = th.randn(4, 3, generator=generator)
            optimizer.zero_grad()
            (model(x) ** 2).sum().backward()
            optimizer.step()
            scheduler.step()

    model, optimizer, scheduler = begin()
    generator = np.random.default_rng(0)
    train(model, optimizer, scheduler, generator, 3)
    path = tmp_path / f"checkpoint{suffix}"
    th.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "generator": generator.bit_generator.state,
        },
        path,
    )
    train(model, optimizer, scheduler, generator, 3)

    again, optimizer2, scheduler2 = begin()
    state = th.load(path)
    again.load_state_dict(state["model"])
    optimizer2.load_state_dict(state["optimizer"])
    scheduler2.load_state_dict(state["scheduler"])
    generator2 = np.random.default_rng(1)
    generator2.bit_generator.state = state["generator"]
    train(again, optimizer2, scheduler2, generator2, 3)
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert np.array_equal(p.data, q.data)
    assert state["optimizer"]["param_groups"][0]["betas"] == (0.9, 0.999)


def test_a_dict_of_another_class_comes_back_as_a_dict(tmp_path):
    got = round_trip(OrderedDict(b=OrderedDict(c=1), a=2), tmp_path / "x.npz")
    same(got, {"b": {"c": 1}, "a": 2})


# --- what a file is


def test_any_program_can_read_an_npz_file(tmp_path):
    model = Shared()
    path = tmp_path / "model.npz"
    th.save({"model": model.state_dict(), "step": 3}, path)
    with np.load(path) as file:
        names = [f"model.{name}" for name, _ in model.named_parameters()]
        assert sorted(file.files) == sorted([*names, "__metadata__"])
        for name, p in model.named_parameters():
            assert np.array_equal(file[f"model.{name}"], p.data)
        content = json.loads(file["__metadata__"].item())
    assert content["version"] == 1 and ["step", 3] in content["tree"]["dict"]


@needs_safetensors
def test_any_program_can_read_a_safetensors_file(tmp_path):
    path = tmp_path / "x.safetensors"
    th.save({"a": th.Tensor([1.0, 2.0]), "b": {"c": np.arange(3)}}, path)
    got = safetensors.numpy.load_file(path)
    assert sorted(got) == ["a", "b.c"] and got["b.c"].tolist() == [0, 1, 2]


@BOTH
def test_the_same_dict_gives_the_same_bytes(suffix, tmp_path):
    paths = [tmp_path / f"{i}{suffix}" for i in range(2)]
    for path in paths:
        th.save({"x": th.ones(3), "n": [1, 2.5, None]}, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_names_that_numpy_trips_over(tmp_path):
    names = ["file", "arr_0", "a", "a.npy", "a/b", "../up", "", ".", "α", " "]
    state = {name: th.Tensor([float(i)]) for i, name in enumerate(names)}
    same(round_trip(state, tmp_path / "x.npz"), state)


def test_a_path_is_taken_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    th.save({"n": 1}, "weights")
    assert os.listdir() == ["weights"] and th.load(Path("weights")) == {"n": 1}
    os.symlink("weights", "latest")
    th.save({"n": 2}, "latest")
    assert os.path.islink("latest") and th.load("weights") == {"n": 2}


def test_files_of_other_programs(tmp_path):
    x, mask = np.arange(6.0).reshape(2, 3), np.array([True, False])
    want = {"x": th.Tensor(x), "mask": th.Tensor(mask)}
    np.savez(tmp_path / "plain.npz", x=x, mask=mask)
    np.savez_compressed(tmp_path / "small.npz", x=np.asfortranarray(x), mask=mask)
    for name in ("plain.npz", "small.npz"):
        same(th.load(tmp_path / name), want)
    if safetensors is not None:
        path = tmp_path / "x.safetensors"
        safetensors.numpy.save_file({"x": x, "mask": mask}, path, {"format": "np"})
        got = th.load(path)
        same({name: got[name] for name in want}, want)
    np.savez(tmp_path / "text.npz", words=np.array(["a", "bc"]))
    with pytest.raises(DTypeError, match=r"'words' is <U2.*Read it by NumPy"):
        th.load(tmp_path / "text.npz")


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
        ("deep", json.loads("[" * 900 + "]" * 900)),
    ]:
        text = json.dumps({"format": "tinygrad_helix", "version": 1, "tree": tree})
        np.savez(folder / f"{name}.npz", x=x, __metadata__=np.array(text.encode()))
    np.savez(folder / "json.npz", __metadata__=np.array(b"{"))
    np.savez(folder / "number.npz", __metadata__=np.array(3))
    return trap


def test_files_that_cannot_be_read(tmp_path):
    trap = bad_files(tmp_path)
    names = sorted(os.listdir(tmp_path))
    assert len(names) == 15
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
