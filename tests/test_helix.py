"""The HELIX block three ways: values, gradients, bytes, and what is not computed."""

import itertools
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix import accounting, memory
from tinygrad_helix.errors import (
    DoubleBackwardError,
    DTypeError,
    HelixError,
    SavedTensorsFreedError,
    ShapeError,
)
from tinygrad_helix.fused import Budget, FusedAux, FusedHelix, Keep, helix, tiles
from tinygrad_helix.fused.policy import INPUTS, KEEPABLE, VALUES, WEIGHTS
from tinygrad_helix.nn.helix import HelixBlock, helix_block, predict_saved

GOLDEN = Path(__file__).parent / "golden" / "helix"
FILES = sorted(path.stem for path in GOLDEN.glob("block_*.npz"))
POLICIES = {"keep9": 9, "keep6": 6, "keep4": 4, "keep3": 3, "keep2": 2, "keep1": 1}
FORMS = [("primitive", None), ("composed", None), *(("fused", name) for name in POLICIES)]
SETS = [
    Keep("x", *names)
    for size in range(8)
    for names in itertools.combinations(KEEPABLE[1:], size)
]

forms = pytest.mark.parametrize(("mode", "policy"), FORMS)


def load(name, dtype="float64"):
    """The inputs of a golden file as leaves, the reset mask, dy, and all its arrays."""
    z = dict(np.load(GOLDEN / f"{name}.npz"))
    leaves = {
        n: th.Tensor(z[n].astype(dtype), requires_grad=True)
        for n in INPUTS
        if n in z and n != "reset"
    }
    return leaves, z.get("reset"), th.Tensor(z["gy"].astype(dtype)), z


def random_inputs(B, T, D, dtype="float64", h0=False, seed=0):
    rng = np.random.default_rng(seed)
    block = HelixBlock(D, dtype=dtype, generator=rng)
    leaves = {
        "x": th.Tensor(rng.standard_normal((B, T, D)).astype(dtype), requires_grad=True)
    }
    for name, p in block.named_parameters():
        noise = 0.1 * rng.standard_normal(p.shape)
        leaves[name] = th.Tensor((p.data + noise).astype(dtype), requires_grad=True)
    if h0:
        leaves["h0"] = th.Tensor(
            rng.standard_normal((B, D)).astype(dtype), requires_grad=True
        )
    return leaves


def error(got, due):
    """max|got - due| / max|due|; absolute where all that is due is 0."""
    scale = np.abs(due).max() if due.size else 0.0
    return (np.abs(got - due).max() if due.size else 0.0) / (scale or 1.0)


def gradients(leaves, dy, dh_T=None, names=None, **kwargs):
    y, h_T = helix_block(**leaves, return_state=True, **kwargs)
    outputs, cotangents = [y], [dy]
    if dh_T is not None and h_T.requires_grad:
        outputs, cotangents = [y, h_T], [dy, dh_T]
    names = list(leaves) if names is None else names
    found = th.grad(outputs, [leaves[n] for n in names], cotangents)
    return {n: g.data for n, g in zip(names, found, strict=True)}


# --- values and gradients


def test_golden_files_are_complete():
    listed = json.loads((GOLDEN / "manifest.json").read_text())
    assert sorted(f["file"] for f in listed) == sorted(p.name for p in GOLDEN.glob("*.npz"))
    assert len(FILES) == 11


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@forms
@pytest.mark.parametrize("name", FILES)
def test_golden(name, mode, policy, dtype):
    leaves, reset, gy, z = load(name, dtype)
    y, h_T = helix_block(
        **leaves,
        reset=reset,
        eps=float(z["eps"]),
        mode=mode,
        policy=policy,
        return_state=True,
    )
    bound_y, bound_g = (1e-13, 1e-12) if dtype == "float64" else (2e-6, 1e-5)
    assert y.dtype == h_T.dtype == dtype
    assert error(y.data, z["fwd.y"]) <= bound_y
    assert error(h_T.data, z["fwd.h"][:, -1]) <= bound_y
    for n, g in zip(leaves, th.grad(y, list(leaves.values()), gy), strict=True):
        assert g.dtype == dtype
        assert error(g.data, z[f"grad.{n}"]) <= bound_g, n
        if n == "wa" and name == "block_T1":
            assert not g.data.any()  # one step from a zero state: no gate matters
        if n == "h0" and reset is not None:
            assert not g.data[reset[:, 0] == 1].any()


@pytest.mark.parametrize("rows", [1, 3, 8, 1000])
@pytest.mark.parametrize("name", ["block_B3_T17_D8_h0_reset", "block_B2_T257_D6_h0"])
@pytest.mark.parametrize("policy", ["keep9", "keep6", "keep1"])
def test_golden_in_tiles_of_any_size(name, rows, policy, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_ROWS", rows)
    monkeypatch.setattr(tiles, "PIECE", 20)
    leaves, reset, gy, z = load(name)
    found = gradients(leaves, gy, reset=reset, policy=policy)
    for n, g in found.items():
        assert error(g, z[f"grad.{n}"]) <= 1e-12, n


@pytest.mark.parametrize("D", [1, 64])
@pytest.mark.parametrize(
    "B, T", [(1, 1), (3, 17), (5000, 1), (1, 5000), (2000, 3), (7, 0), (0, 7)]
)
def test_tiles_take_every_row_once(B, T, D):
    rows = np.full((B, T), -1)
    for tile in tiles.tiles(B, T, D):
        assert 0 < tile.rows <= tiles.TILE_ROWS
        assert (rows[tile.b0 : tile.b1, tile.t0 : tile.t1] == -1).all()
        rows[tile.b0 : tile.b1, tile.t0 : tile.t1] = (
            np.arange(tile.r0, tile.r1).reshape(-1, tile.group).T
        )
    assert sorted(rows.reshape(-1)) == list(range(B * T))


@pytest.mark.parametrize("keep", SETS, ids=lambda keep: keep.name)
def test_every_set_gives_the_golden_gradients(keep):
    leaves, reset, gy, z = load("block_B3_T17_D8_h0_reset")
    for n, g in gradients(leaves, gy, reset=reset, policy=keep).items():
        assert error(g, z[f"grad.{n}"]) <= 1e-12, n


def test_what_is_kept_is_what_the_golden_file_says():
    leaves, reset, _, z = load("block_B3_T17_D8_h0_reset")
    y = helix_block(**leaves, reset=reset, policy="keep9")
    saved = {s.label: s.value for s in y.node.saved}
    B, T, D = y.shape
    for name in KEEPABLE[1:]:
        due = z[f"fwd.{name}"]
        got = np.empty_like(due)
        for tile in tiles.tiles(B, T, D):
            tile.of(got)[...] = tile.steps(saved[name][tile.r0 : tile.r1])
        assert error(got, due) <= 1e-13, name
        assert saved[name].base is None
    assert saved["x"] is leaves["x"].data
    assert saved["h0"] is leaves["h0"].data
    assert saved["reset"].dtype == bool


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("block_T1_h0", 1.0), ("block_B1_D5_h0", 0.1), ("block_B3_T17_D8_h0", 0.05)],
)
def test_leaving_h0_out_of_the_gates_gradient_is_seen(name, wrong, monkeypatch):
    """ga_0 = G_0·h0: a backward pass that takes 0 there has the gradient of wa wrong."""
    leaves, _, gy, z = load(name)
    states_before = FusedAux.states_before

    def without_h0(self, place):
        before = states_before(self, place)
        if self.tile.t0 == 0:
            before[: self.tile.group] = 0
        return before

    monkeypatch.setattr(FusedAux, "states_before", without_h0)
    assert error(gradients(leaves, gy)["wa"], z["grad.wa"]) >= wrong


@pytest.mark.parametrize("dtype, bound", [("float64", 1e-12), ("float32", 2e-5)])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_final_state_has_a_gradient(policy, dtype, bound):
    leaves = random_inputs(3, 9, 6, dtype, h0=True)
    exact = random_inputs(3, 9, 6, h0=True)
    rng = np.random.default_rng(1)
    reset = rng.random((3, 9)) < 0.2
    dy, dh_T = (th.Tensor(rng.standard_normal(s)) for s in ((3, 9, 6), (3, 6)))
    for both in (True, False):
        given = dy if both else dy * 0
        due = gradients(exact, given, dh_T, reset=reset, mode="composed")
        got = gradients(
            leaves, given.astype(dtype), dh_T.astype(dtype), reset=reset, policy=policy
        )
        for n in due:
            assert error(got[n], due[n]) <= bound, n


def test_gradcheck():
    leaves = random_inputs(2, 4, 3, h0=True)
    reset = np.array([[0, 0, 1, 0], [0, 0, 0, 0]])
    for mode, policy in [*FORMS[:2], ("fused", "keep9"), ("fused", "keep1")]:

        def block(*values, mode=mode, policy=policy):
            named = dict(zip(leaves, values, strict=True))
            return helix_block(
                **named, reset=reset, mode=mode, policy=policy, return_state=True
            )

        assert th.gradcheck(block, list(leaves.values()))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("bias", [-1000.0, -30.0, 30.0, 1000.0])
@forms
def test_saturated_gates_are_quiet_and_right(mode, policy, bias, dtype):
    leaves, exact = random_inputs(2, 5, 4, dtype), random_inputs(2, 5, 4)
    for tensors in (leaves, exact):
        tensors["wa"].data[-1] = bias
        tensors["x"].data[0, 0] *= 1e4
    dy = np.random.default_rng(2).standard_normal((2, 5, 4))
    due = gradients(exact, th.Tensor(dy), mode="composed")
    got = gradients(leaves, th.Tensor(dy.astype(dtype)), mode=mode, policy=policy)
    # A gate that rounds to 1 leaves nothing of 1 - a; one of e^-30 keeps all its digits.
    least = 1e-6 if bias > 0 else 1e-30
    for n in due:
        scale = max(np.abs(due[n]).max(), least)
        assert np.abs(got[n] - due[n]).max() <= 1e-4 * scale, n


# --- sequences in parts, packed, empty, strided


@forms
def test_a_sequence_in_two_parts_is_the_whole(mode, policy):
    leaves = random_inputs(2, 11, 4, h0=True)
    whole, last = helix_block(**leaves, mode=mode, policy=policy, return_state=True)
    x, h0, parts = leaves["x"], leaves["h0"], []
    for part in (x[:, :4], x[:, 4:]):
        y, h0 = helix_block(
            **leaves | {"x": part, "h0": h0}, mode=mode, policy=policy, return_state=True
        )
        parts.append(y)
    joined = th.cat(parts, axis=1)
    assert error(joined.data, whole.data) <= 1e-14
    assert error(h0.data, last.data) <= 1e-14
    dy = th.Tensor(np.random.default_rng(3).standard_normal(whole.shape))
    inputs = list(leaves.values())
    due = th.grad([whole, last], inputs, [dy, last.detach()])
    got = th.grad([joined, h0], inputs, [dy, last.detach()])
    for g, d in zip(got, due, strict=True):
        assert error(g.data, d.data) <= 1e-12


@forms
def test_packed_sequences_are_those_apart(mode, policy):
    leaves = random_inputs(1, 9, 4)
    x = leaves["x"]
    reset = np.zeros((1, 9), bool)
    reset[0, [0, 4]] = True
    packed = helix_block(**leaves, reset=reset, mode=mode, policy=policy)
    for part in (slice(0, 4), slice(4, 9)):
        apart = helix_block(**leaves | {"x": x[:, part]}, mode=mode, policy=policy)
        assert error(packed.data[:, part], apart.data) <= 1e-14


@forms
def test_no_state_is_a_zero_state(mode, policy):
    leaves = random_inputs(2, 5, 4)
    zero = th.zeros(2, 4, dtype="float64")
    y = helix_block(**leaves, mode=mode, policy=policy)
    assert (y.data == helix_block(**leaves, h0=zero, mode=mode, policy=policy).data).all()


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 0, 3), (0, 0, 3)])
@forms
def test_empty(mode, policy, shape):
    leaves = random_inputs(*shape, h0=True)
    y, h_T = helix_block(**leaves, mode=mode, policy=policy, return_state=True)
    assert y.shape == shape
    assert (h_T.data == leaves["h0"].data).all()
    assert h_T.data is not leaves["h0"].data
    grads = gradients(
        leaves, y.detach(), th.ones(*h_T.shape, dtype="float64"), mode=mode, policy=policy
    )
    for n, g in grads.items():
        assert g.shape == leaves[n].shape
        assert (g == (1 if n == "h0" else 0)).all(), n
    del leaves["h0"]
    assert not helix_block(**leaves, mode=mode, policy=policy, return_state=True)[
        1
    ].data.any()


STRIDED = {
    "transposed": lambda x: x.transpose(0, 2, 1),
    "sliced": lambda x: x[:, ::2],
    "flipped": lambda x: x[::-1, :, ::-1],
    "broadcast": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "Fortran": np.asfortranarray,
}


@pytest.mark.parametrize("layout", STRIDED)
@pytest.mark.parametrize("B", [1, 3])
@forms
def test_strides_change_no_bit(mode, policy, layout, B):
    """https://github.com/cupy/cupy/issues/9233: a strided input read as if contiguous."""
    rng = np.random.default_rng(4)
    strided = STRIDED[layout]
    width = 8
    x = strided(rng.standard_normal((B, width, width)))
    dy = strided(rng.standard_normal((B, width, width)))
    results = []
    for arrays in ((x, dy), (np.ascontiguousarray(x), np.ascontiguousarray(dy))):
        leaves = random_inputs(B, 1, width, h0=True)
        leaves["x"] = th.Tensor(arrays[0], requires_grad=True)
        h0 = leaves["h0"].data
        if arrays[0] is x:
            h0 = np.repeat(h0, 2, axis=1)[:, ::2]
        leaves["h0"] = th.Tensor(h0, requires_grad=True)
        y = helix_block(**leaves, mode=mode, policy=policy)
        results.append([y, *th.grad(y, list(leaves.values()), th.Tensor(arrays[1]))])
        if mode == "fused":
            assert y.data.flags.c_contiguous
    for a, b in zip(*results, strict=True):
        if mode == "fused":
            assert a.data.tobytes() == b.data.tobytes()
        else:
            assert error(a.data, b.data) <= 1e-14


# --- what is kept


SHAPES = [(2, 16, 32), (3, 7, 5), (1, 1, 1), (8, 128, 256), (8, 512, 512)]


@pytest.mark.parametrize(
    ("shape", "dtype", "extras"),
    [
        (shape, dtype, extras)
        for shape, dtype, extras in itertools.product(
            SHAPES, ("float32", "float64"), (False, True)
        )
        if shape[1] < 100 or (dtype, extras) == ("float32", False)
    ],
)
@forms
def test_bytes_predicted_counted_measured(mode, policy, shape, dtype, extras):
    B, T, D = shape
    leaves = random_inputs(*shape, dtype, h0=extras)
    reset = (np.arange(B * T).reshape(B, T) % 5 == 2) if extras else None
    for n in WEIGHTS:
        memory.mark_parameter(leaves[n].data)

    def block(**inputs):
        return helix_block(**inputs, mode=mode, policy=policy)

    itemsize = np.dtype(dtype).itemsize
    values = {"composed": 15, "primitive": 22}.get(mode) or POLICIES[policy]
    due = values * B * T * D * itemsize + extras * (B * D * itemsize + B * T)
    if mode == "primitive":
        due += 2 * B * T * itemsize + 4 * B * T * D
    predicted = predict_saved(mode, policy, shape, dtype, h0=extras, reset=extras)
    assert sum(predicted.values()) == due
    inputs = dict(leaves) | ({"reset": reset} if extras else {})
    counted = th.saved_bytes(block(**inputs))
    assert counted == due
    assert accounting.measure_saved(block, inputs) == due


@forms
def test_bytes_of_any_wanted_gradients(mode, policy):
    rng = np.random.default_rng(5)
    names = [n for n in INPUTS if n != "reset"]
    reset = np.array([[0, 1, 0], [0, 0, 0]], bool)
    for _ in range(60):
        wanted = {n for n in names if rng.random() < rng.choice([0.1, 0.5])}
        leaves = random_inputs(2, 3, 4, "float32", h0=True)
        for n in names:
            leaves[n].requires_grad = n in wanted
        y = helix_block(**leaves, reset=reset, mode=mode, policy=policy)
        predicted = predict_saved(
            mode, policy, (2, 3, 4), "float32", needs=wanted, h0=True, reset=True
        )
        assert th.saved_bytes(y) == sum(predicted.values()), wanted
        if mode == "fused":
            counted = {s.label: s.nbytes for s in memory.saved(y) if not s.parameter}
            assert counted == predicted
            assert (
                FusedHelix.predict(y.node.inputs, y.node.needs, **y.node.attrs) == predicted
                if wanted
                else not predicted
            )


def test_a_budget_bounds_the_bytes_of_the_call():
    leaves = random_inputs(2, 16, 32, "float32", h0=True)
    unit = 2 * 16 * 32 * 4
    for limit in (1.2, 2.5, 4.1, 6.1, 20):
        y = helix_block(**leaves, policy=Budget(int(limit * unit)))
        assert unit <= th.saved_bytes(y) <= limit * unit
    with pytest.raises(HelixError, match=str(unit + 2 * 32 * 4)):
        helix_block(**leaves, policy=Budget(unit))
    with th.no_grad():
        helix_block(**leaves, policy=Budget(0))


def test_blocks_in_a_row_share_what_is_between_them():
    leaves = random_inputs(2, 16, 8, "float32")
    unit = 2 * 16 * 8 * 4
    y = helix_block(**leaves, policy="keep6")
    z = helix_block(**leaves | {"x": y}, policy="keep6")
    assert th.saved_bytes(z) == 12 * unit
    z = helix_block(
        **leaves | {"x": helix_block(**leaves, mode="composed")}, mode="composed"
    )
    assert th.saved_bytes(z) == 30 * unit


def test_graph_counts():
    leaves = random_inputs(2, 3, 4)
    for mode, ops, getitems in (("composed", 18, 2), ("primitive", 40, 2), ("fused", 1, 0)):
        names = [node.op.name for node in memory.nodes(helix_block(**leaves, mode=mode))]
        assert names.count("getitem") == getitems
        assert len(names) - getitems == ops


@forms
def test_the_sweep_frees_and_repeats(mode, policy):
    leaves = random_inputs(2, 3, 4)
    y = helix_block(**leaves, mode=mode, policy=policy)
    dy = y.detach()
    inputs = list(leaves.values())
    first = th.grad(y, inputs, dy, retain_graph=True)
    again = th.grad(y, inputs, dy)
    for a, b in zip(first, again, strict=True):
        assert a.data.tobytes() == b.data.tobytes()
    assert th.saved_bytes(y) == 0
    with pytest.raises(SavedTensorsFreedError):
        th.grad(y, inputs, dy)


@pytest.mark.parametrize(
    "policy", [*POLICIES, Keep("x", "a"), Keep("x", "s2", "xn2", "f2")]
)
def test_audit(policy):
    leaves = random_inputs(2, 5, 4, h0=True)
    reset = np.zeros((2, 5), bool)
    reset[0, 2] = True  # the other sequence reads every gate
    for n in WEIGHTS:
        memory.mark_parameter(leaves[n].data)
    report = th.audit(
        FusedHelix, *leaves.values(), reset, eps=1e-5, policy=policy, return_state=True
    )
    assert report.ok, report


@pytest.mark.filterwarnings("ignore:(invalid|overflow).*:RuntimeWarning")
@pytest.mark.parametrize("policy", ["keep9", "keep6", "keep1"])
@pytest.mark.parametrize("at", ["x", "h0"])
def test_a_reset_lets_no_nan_through(at, policy):
    # Sequences packed into one row are separate, whatever is in the one before.
    leaves = random_inputs(2, 8, 5, h0=True)
    reset = np.zeros((2, 8), bool)
    if at == "x":
        leaves["x"].data[0, 2] = np.nan
        reset[:, 5] = True
    else:
        leaves["h0"].data[0] = np.inf
        reset[:, 0] = True
    dy = np.ones((2, 8, 5))
    finite = []
    for mode, kept in (("composed", None), ("fused", policy)):
        y, h_T = helix_block(
            **leaves, reset=reset, mode=mode, policy=kept, return_state=True
        )
        dx, dh0 = th.grad([y, h_T], [leaves["x"], leaves["h0"]], [dy, np.ones((2, 5))])
        finite.append([np.isfinite(v.data) for v in (y, h_T, dx, dh0)])
    for got, due in zip(finite[1], finite[0], strict=True):
        assert (got == due).all()
    assert finite[1][0][0, 5:].all() and finite[1][2][0, 5:].all() and finite[1][1].all()


# --- memory that is not kept


@pytest.mark.parametrize("policy", ["keep9", "keep6"])
@pytest.mark.parametrize("shape", [(2, 4096, 64), (8, 512, 512)])
def test_transient_and_workspace(shape, policy):
    B, T, D = shape
    N = B * T
    leaves = random_inputs(*shape, "float32")
    inputs = list(leaves.values())
    with accounting.tracing():
        empty = accounting.numpy_bytes()
        y = helix_block(**leaves, policy=policy)
        dy = th.Tensor(np.ones(shape, np.float32))
        start = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        grads = th.grad(y, inputs, dy, retain_graph=True)
        made = sum(g.nbytes for g in grads)
        transient = tracemalloc.get_traced_memory()[1] - start - made
        del y, dy, grads
        workspace = accounting.numpy_bytes() - empty
    assert workspace == 0
    assert transient + workspace <= (5 * N * D + 21 * D * D) * 4
    # What it is: six D² (the weights times their gains), and for each tile in work eight
    # rows of D, three pieces, and two D² for a product to be added.
    parts = tiles.tiles(B, T, D)
    rows = max(tile.rows for tile in parts)
    lanes = tiles.lane_count(N, D, parts)
    a_tile = 8 * rows * D + 2 * D * D + 3 * tiles.PIECE
    assert transient <= 1.01 * (lanes * a_tile + 6 * D * D) * 4 + 2**16


def test_without_a_tape_nothing_has_the_full_size():
    B, T, D = 4, 16384, 64
    leaves = random_inputs(B, T, D, "float32")
    unit = B * T * D * 4
    with th.no_grad(), accounting.tracing():
        start = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        y = helix_block(**leaves)
        assert tracemalloc.get_traced_memory()[1] - start < 2 * unit  # y and scratch
        assert y.node is None


# --- what is not computed

ALONE = {"wf2": 1, "g4": 1, "wf1": 2, "g3": 2, "wo": 3, "g2": 3, "h0": 3, "wa": 4, "wb": 4,
         "g1": 5, "x": 5}  # fmt: skip


@pytest.mark.parametrize("wanted", ALONE)
def test_one_gradient_takes_its_own_products_only(wanted, monkeypatch):
    leaves = random_inputs(2, 3, 4, h0=True)
    full = gradients(leaves, leaves["x"].detach())
    for n, leaf in leaves.items():
        leaf.requires_grad = n == wanted
    calls = []

    def gemm(a, b, out):
        calls.append(out.shape)
        np.matmul(a, b, out=out)

    monkeypatch.setattr(tiles, "tiles", lambda B, T, D: [tiles.Tile(0, B, 0, T, 0, B * T)])
    for module in (helix, tiles):
        monkeypatch.setattr(module, "gemm", gemm)
    y = helix_block(**leaves)
    assert len(calls) == 5
    calls.clear()
    (got,) = th.grad(y, [leaves[wanted]], leaves["x"].detach())
    assert len(calls) == ALONE[wanted]
    assert error(got.data, full[wanted]) <= 1e-12


def test_any_gradients_from_any_set():
    rng = np.random.default_rng(6)
    names = [n for n in INPUTS if n != "reset"]
    reset = np.array([[0, 1, 0, 0, 0], [0, 0, 0, 0, 1]])
    leaves = random_inputs(2, 5, 3, h0=True)
    dy, dh_T = (th.Tensor(rng.standard_normal(s)) for s in ((2, 5, 3), (2, 3)))
    due = gradients(leaves, dy, dh_T, reset=reset, mode="composed")
    for _ in range(150):
        wanted = [n for n in names if rng.random() < 0.4] or ["x"]
        for n in names:
            leaves[n].requires_grad = n in wanted
        swept = [n for n in wanted if rng.random() < 0.7] or wanted
        keep = SETS[rng.integers(len(SETS))]
        # The final state depends on fewer inputs than y: give it a cotangent with y's.
        got = gradients(leaves, dy, dh_T, names=swept, reset=reset, policy=keep)
        for n in swept:
            assert error(got[n], due[n]) <= 1e-12, (n, wanted, keep)


# --- what is refused


def test_second_derivatives_are_refused():
    for policy in POLICIES:
        leaves = random_inputs(2, 3, 4)
        y = helix_block(**leaves, policy=policy)
        with pytest.raises(DoubleBackwardError, match="composed"):
            th.grad(y.sum(), [leaves["x"]], create_graph=True)
    leaves = random_inputs(1, 3, 2)
    y = helix_block(**leaves, mode="composed")
    (g,) = th.grad(y.sum(), [leaves["x"]], create_graph=True)
    assert th.grad((g * g).sum(), [leaves["wa"]])[0].data.any()


def refused(error, says, **changes):
    leaves = random_inputs(2, 3, 4, "float32")
    fresh = {n: t.data.copy() for n, t in leaves.items()}
    kwargs = dict(leaves) | changes
    with pytest.raises(error, match=says):
        helix_block(**kwargs)
    for n, t in leaves.items():
        assert (t.data == fresh[n]).all()
        assert t.grad is None


f4 = np.float32


@pytest.mark.parametrize("mode", ["primitive", "composed", "fused"])
@pytest.mark.parametrize(
    "changes, error, says",
    [
        ({"x": np.ones((3, 4), f4)}, ShapeError, r"\[B, T, D\]; got \(3, 4\)"),
        ({"x": np.ones((1, 2, 3, 4), f4)}, ShapeError, r"got \(1, 2, 3, 4\)"),
        ({"x": np.ones((2, 3, 5), f4)}, ShapeError, r"wa of shape \(6, 5\).*got \(5, 4\)"),
        ({"x": np.ones((2, 3, 0), f4)}, ShapeError, "at least 1"),
        ({"x": np.ones((2, 3, 4), int)}, DTypeError, "x int64"),
        ({"x": np.ones((2, 3, 4), "f2")}, DTypeError, "float16"),
        ({"x": np.ones((2, 3, 4))}, DTypeError, "x float64, wa float32"),
        ({"x": [[[1.0] * 4] * 3] * 2}, DTypeError, "x is a list"),
        ({"wa": np.ones((4, 4), f4)}, ShapeError, r"wa of shape \(5, 4\).*bias.*\(4, 4\)"),
        ({"wb": np.ones((4, 5), f4)}, ShapeError, r"wb of shape \(4, 4\); got \(4, 5\)"),
        ({"wo": np.ones((5, 4), f4)}, ShapeError, r"wo of shape \(4, 4\); got \(5, 4\)"),
        ({"wf1": np.ones((8, 4), f4)}, ShapeError, r"wf1 of shape \(4, 8\); got \(8, 4\)"),
        ({"wf2": np.ones((4, 8), f4)}, ShapeError, r"wf2 of shape \(8, 4\); got \(4, 8\)"),
        ({"g1": np.ones((1, 4), f4)}, ShapeError, r"g1 of shape \(4,\); got \(1, 4\)"),
        ({"g2": np.ones(5, f4)}, ShapeError, r"g2 of shape \(4,\); got \(5,\)"),
        ({"g3": np.ones(3, f4)}, ShapeError, "g3"),
        ({"g4": np.ones((), f4)}, ShapeError, "g4"),
        ({"g4": np.ones(4)}, DTypeError, "g4 float64"),
        ({"g4": None}, DTypeError, "g4 is a NoneType"),
        ({"h0": np.ones((3, 4), f4)}, ShapeError, r"h0 of shape \(2, 4\).*got \(3, 4\)"),
        ({"h0": np.ones((2, 4))}, DTypeError, "h0 float64"),
        ({"reset": np.ones((3, 2), bool)}, ShapeError, r"\(2, 3\)"),
        ({"reset": np.full((2, 3), 2)}, DTypeError, "0 and 1"),
        ({"eps": -1.0}, HelixError, "eps=-1"),
        ({"eps": float("nan")}, HelixError, "eps=nan"),
    ],
)
def test_bad_input(mode, changes, error, says):
    refused(error, says, mode=mode, **changes)


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"mode": "fast"}, "'fast'.*'primitive', 'composed', 'fused'"),
        ({"mode": None}, "None.*'primitive'"),
        ({"mode": "composed", "policy": "lean"}, "'lean' with mode='composed'"),
        ({"mode": "primitive", "policy": Keep("x")}, r"keep\(x\) with mode='primitive'"),
        ({"policy": "keep7"}, "'keep7'.*'keep9'.*'lean'"),
        ({"policy": ["x"]}, r"\['x'\].*'keep9'"),
        ({"policy": Budget(5)}, "smallest set"),
    ],
)
def test_bad_mode_or_policy(changes, says):
    refused(HelixError, says, **changes)


def test_a_cotangent_of_another_shape_is_refused():
    leaves = random_inputs(2, 3, 4)
    y = helix_block(**leaves)
    with pytest.raises(ShapeError):
        y.backward(th.ones(2, 3, 5, dtype="float64"))
    assert th.saved_bytes(y) == 6 * 2 * 3 * 4 * 8


# --- the functional form and the module


def test_arrays_alone_compute():
    leaves = random_inputs(2, 3, 4)
    arrays = {n: t.data for n, t in leaves.items()}
    for mode, policy in FORMS:
        y = helix_block(**arrays, mode=mode, policy=policy)
        assert isinstance(y, np.ndarray)
        assert error(y, helix_block(**leaves, mode="composed").data) <= 1e-13


def test_module():
    D = 64
    block = HelixBlock(D, generator=np.random.default_rng(0))
    named = dict(block.named_parameters())
    assert list(named) == list(WEIGHTS)
    assert sum(p.size for p in named.values()) == 7 * D * D + 5 * D
    assert (block.wa.data[-1] == 3).all()
    for n, fan_in in (("wa", D), ("wb", D), ("wo", D), ("wf1", D), ("wf2", 2 * D)):
        w = named[n].data[:D] if n == "wa" else named[n].data
        assert abs(w.std() * fan_in**0.5 - 1) < 0.05
        assert abs(w.mean()) < 3 * w.std() / w.size**0.5
    for n in ("g1", "g2", "g3", "g4"):
        assert (named[n].data == 1).all()
    other = HelixBlock(D, dtype="float64", generator=np.random.default_rng(0))
    assert (other.wf2.data.astype("f4") == block.wf2.data).all()

    x = th.randn(2, 5, D, requires_grad=True)
    y, h_T = block(x, h0=th.ones(2, D), reset=np.zeros((2, 5)), return_state=True)
    assert y.shape == x.shape
    assert h_T.shape == (2, D)
    assert (block(x).data == helix_block(x, *block.parameters()).data).all()


@forms
@pytest.mark.parametrize("needs", [False, True])
def test_module_predicts_what_is_saved(mode, policy, needs):
    block = HelixBlock(4, mode=mode, policy=policy)
    x = th.randn(2, 3, 4, requires_grad=needs)
    h0 = th.randn(2, 4, requires_grad=needs)
    reset = np.array([[0, 1, 0], [0, 0, 0]], bool)
    for frozen in ((), ("wa",), ("wf2", "g4"), ("g1", "wa", "wb"), tuple(WEIGHTS)):
        for n in WEIGHTS:
            getattr(block, n).requires_grad = n not in frozen
        predicted = block.predict_saved(x.shape, x.dtype, needs)
        assert sum(predicted.values()) == th.saved_bytes(block(x))
        predicted = block.predict_saved(x.shape, x.dtype, needs, h0=True, reset=True)
        assert sum(predicted.values()) == th.saved_bytes(block(x, h0, reset))


@pytest.mark.parametrize(
    "kwargs, error",
    [
        ({"dim": 0}, ShapeError),
        ({"dim": 2.5}, DTypeError),
        ({"dim": 4, "dtype": "float16"}, DTypeError),
        ({"dim": 4, "dtype": "int64"}, DTypeError),
        ({"dim": 4, "mode": "fast"}, HelixError),
        ({"dim": 4, "policy": "keep7"}, HelixError),
        ({"dim": 4, "mode": "composed", "policy": "lean"}, HelixError),
        ({"dim": 4, "generator": 7}, DTypeError),
    ],
)
def test_module_refuses(kwargs, error):
    with pytest.raises(error):
        HelixBlock(**kwargs)


@forms
def test_every_weight_learns(mode, policy):
    """https://github.com/huggingface/candle/issues/3569: a fused op without a gradient."""
    block = HelixBlock(6, mode=mode, policy=policy, generator=np.random.default_rng(0))
    x = th.Tensor(np.random.default_rng(1).standard_normal((2, 5, 6)).astype("f4"))
    y = block(x)
    assert y.requires_grad
    (y * y).sum().backward()
    for n, p in block.named_parameters():
        assert p.grad is not None and p.grad.data.any(), n


def test_values_of_the_table_are_those_of_the_aux():
    for name in VALUES:
        assert name in ("x", "s", "f2") or hasattr(FusedAux, f"_{name}")
