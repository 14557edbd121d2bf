"""save and load: what comes back, and what a file holds."""

import json
import os
import string
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import tinygrad_helix as th
from tinygrad_helix.errors import DTypeError, HelixError
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
    square = th.Tensor(np.arange(9.0).reshape(3, 3))
    got = round_trip({"a": square, "b": square.T}, path)
    assert got["b"].tolist() == square.T.tolist() != got["a"].tolist()
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
    th.save({"model": model.state_dict(), "step": 3, "best": np.inf}, path)
    with np.load(path) as file:
        names = [f"model.{name}" for name, _ in model.named_parameters()]
        assert sorted(file.files) == sorted([*names, "__metadata__"])
        for name, p in model.named_parameters():
            assert np.array_equal(file[f"model.{name}"], p.data)
        # Standard JSON, without the NaN and Infinity of Python's own.
        content = json.loads(file["__metadata__"].item(), parse_constant=pytest.fail)
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
