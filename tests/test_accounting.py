"""Predicted = counted = measured, peaks, and why a buffer is alive."""

import gc
import sys
import types

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix import accounting, memory


def leaf(*shape, dtype="float32"):
    rng = np.random.default_rng(sum(shape))
    return th.Tensor(rng.standard_normal(shape).astype(dtype), requires_grad=True)


class HiddenInNode(th.Op):
    """Keeps a copy that lives as long as its node, in an attribute of it."""

    @staticmethod
    def forward(xp, x, *, needs, box):
        box.held = x.copy()
        return x * 2, {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, box):
        return (dy * 2,)


class Box:
    held = None


# --- counted


def test_a_storage_counts_once_and_a_view_as_its_whole_buffer():
    # https://github.com/pytorch/pytorch/issues/1995
    x = leaf(1000, 100, dtype="float64")
    y = (x[:10] * x[:10]).sum()
    rows = th.memory.saved(y)
    assert [(r.label, r.view_nbytes, r.nbytes, r.first) for r in rows] == [
        ("a", 8000, 800_000, True),
        ("b", 8000, 800_000, False),
    ]
    assert th.saved_bytes(y) == 800_000
    text = memory.table(y)
    assert "800,000 (a view of 8,000)" in text
    assert "shared" in text
    assert text.endswith("saved: 800,000 bytes")


def test_several_outputs_share_their_trunk():
    x = leaf(8)
    h = x.exp()
    assert th.saved_bytes(h * h, h.log()) == th.saved_bytes(h * h) == 32


def test_rows_name_the_line_that_made_the_node():
    x = leaf(3)
    y = x.exp()
    line = sys._getframe().f_lineno - 1
    (saved,) = memory.saved(y)
    assert saved.place == f"{__file__}:{line}"
    assert (saved.op, saved.label, saved.shape, saved.dtype) == (
        "exp",
        "y",
        (3,),
        "float32",
    )


def test_parameters_are_a_class_of_their_own():
    x, w = leaf(4, 8), leaf(8, 8)
    y = x @ w
    assert th.saved_bytes(y) == x.nbytes + w.nbytes
    memory.mark_parameter(w.data)
    assert th.saved_bytes(y) == x.nbytes
    assert [r.parameter for r in memory.saved(y)] == [False, True]
    assert th.saved_bytes(x @ w[:, :4]) == x.nbytes, "a view of a parameter is one too"


def test_marks_and_versions_end_with_the_array():
    before = len(memory._versions), len(memory._parameters)
    x = th.zeros(5)
    memory.mark_parameter(x.data)
    x += 1
    assert memory.version(x.data[1:]) == 1
    assert (len(memory._versions), len(memory._parameters)) == (
        before[0] + 1,
        before[1] + 1,
    )
    del x
    assert (len(memory._versions), len(memory._parameters)) == before


def test_backward_leaves_nothing_saved():
    x = leaf(512, 512)
    losses = []
    for _ in range(3):
        loss = x.exp().tanh().sum()
        assert th.saved_bytes(loss) == 2 * x.nbytes
        loss.backward()
        losses.append(loss)
    assert [th.saved_bytes(loss) for loss in losses] == [0, 0, 0]


# --- measured


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: (x @ w).silu().sum(),
        lambda x, w: x.exp(),  # the tape holds the output itself
        lambda x, w: (x.exp(), x.tanh(), x + 1),
        lambda x, w: th.rms_norm(x, w[0]) * x,
        lambda x, w: th.minimum(x, x * w[0]).max(axis=1),
        lambda x, w: th.where(x > 0, x, w[0]) / (x * x + 1),
        lambda x, w: {"y": th.cat([x, x @ w]).sigmoid()},
        lambda x, w: x[:, :3].softmax() + x[[0, 0, 1]][:, :3].sum(axis=0),
    ],
)
def test_counted_is_measured(fn, dtype):
    x, w = leaf(6, 5, dtype=dtype), leaf(5, 5, dtype=dtype)
    memory.mark_parameter(w.data)
    y = fn(x, w)
    ys = y.values() if isinstance(y, dict) else y if isinstance(y, tuple) else [y]
    counted = th.saved_bytes(*ys)
    assert counted > 0
    assert accounting.measure_saved(fn, {"x": x, "w": w}, ("w",)) == counted


def test_the_callers_tensors_are_left_alone():
    x = leaf(4)
    grad = x.grad = th.ones(4)
    accounting.profile(lambda x: (x * x).sum(), {"x": x})
    assert x.grad is grad
    assert x.version == 0


def test_a_copy_outside_the_tape_is_found():
    x = leaf(16, 16)
    box = Box()

    def fn(x):
        y = th.apply(HiddenInNode, x, box=Box())
        return (y * y).sum()

    assert accounting.measure_saved(fn, {"x": x}) - th.saved_bytes(fn(x)) == x.nbytes
    del box


# --- profile


def test_profile_peak_and_transient():
    n = 256 * 1024
    x = leaf(n)

    def fn(x):
        return (x.exp() * 2.0).tanh().sum()

    p = accounting.profile(fn, {"x": x})
    assert (p.ops, p.nodes, p.saved_tensors, p.storages) == (4, 4, 2, 2)
    assert p.counted == p.measured == 2 * x.nbytes
    assert p.bands == {"exp.y": x.nbytes, "tanh.y": x.nbytes}
    slack = 64 * 1024 + p.peak_bytes // 100
    # tanh's vjp: both saved arrays, 1 - y² and its product with dy (a repeated number)
    assert abs(p.peak_bytes - 4 * x.nbytes) <= slack
    assert p.peak_at["phase"] == "backward"
    assert p.peak_at["node"] == "tanh"
    # of those 4, 2 were there when the sweep began, and no gradient was made yet
    assert abs(p.transient_bytes - 2 * x.nbytes) <= slack
    assert p.workspace_bytes == 0
    assert abs(p.no_grad_peak_bytes - 2 * x.nbytes) <= slack


def test_the_peak_of_the_sweep_is_less_the_gradients_made_by_then():
    n = 1 << 16
    a, b = leaf(n), leaf(n)

    def fn(a, b):  # the sweep works on b first, with a's gradient still to come
        return ((a * 2.0).sum() + (b.exp().tanh() * 3.0).sum()) * 1.0

    one = accounting.profile(lambda b: (b.exp().tanh() * 3.0).sum(), {"b": b})
    two = accounting.profile(fn, {"a": a, "b": b})
    assert one.transient_bytes > a.nbytes // 2
    assert two.transient_bytes >= one.transient_bytes - 64 * 1024


def test_an_input_that_two_nodes_save_is_predicted_once():
    block = th.nn.HelixBlock(8)
    w = dict(block.named_parameters())

    def twice(x, **w):
        return th.helix_block(x, **w) + th.helix_block(x, **w)

    p = accounting.profile(twice, {"x": leaf(2, 3, 8), **w}, parameters=w)
    assert p.predicted == p.counted == p.measured == 11 * 2 * 3 * 8 * 4


def test_aliased_inputs_keep_their_sharing():
    x = leaf(4, 8)
    for inputs in ({"a": x, "b": x}, {"a": x, "b": th.Tensor(x.data, None, True)}):
        p = accounting.profile(lambda a, b: (a * b).sum(), inputs)
        assert p.counted == p.measured == x.nbytes
        assert p.no_grad_peak_bytes < 2 * x.nbytes + 4096
    base = np.arange(20, dtype=np.float32).reshape(4, 5)
    for owner in (base.copy(), np.asfortranarray(base)):
        parts = {
            "a": th.Tensor(owner[1:, ::2], requires_grad=True),
            "b": th.Tensor(owner[::-1].T, requires_grad=True),
        }
        seen = {}

        def fn(a, b, seen=seen):
            seen.update(a=a.numpy() if not a.requires_grad else a.data.copy())
            assert memory.storage(a.data) is memory.storage(b.data)
            seen.update(b=b.data.copy(), shared=memory.storage(a.data))
            return (a * a).sum() + (b * b).sum()

        p = accounting.profile(fn, parts)
        assert (seen["a"] == parts["a"].data).all()
        assert (seen["b"] == parts["b"].data).all()
        assert not np.shares_memory(seen.pop("shared"), owner)
        assert p.counted == owner.nbytes


@pytest.mark.parametrize("shape", [(0, 3, 8), (2, 0, 8)])
@pytest.mark.parametrize("mode", ["composed", "primitive", "fused"])
def test_empty_batches_keep_nothing_outside_the_tape(shape, mode):
    w = dict(th.nn.HelixBlock(8).named_parameters())

    def fn(x, **w):
        return th.helix_block(x, **w, mode=mode)

    p = accounting.profile(fn, {"x": leaf(*shape), **w}, parameters=w)
    assert p.measured == p.counted
    report = th.compare({"f": fn}, {"x": leaf(*shape), **w}, parameters=w, repeats=1)
    assert report.check() == []


def test_an_input_that_is_not_saved_is_no_part_of_the_peak():
    x = leaf(1 << 16)
    p = accounting.profile(lambda x: (x + 1.0).sum(), {"x": x})
    assert p.counted == p.measured == 0
    assert abs(p.peak_bytes - x.nbytes) <= 64 * 1024


def test_kept_scratch_is_workspace():
    pool = {}

    class Scratch(th.Op):
        @staticmethod
        def forward(xp, x, *, needs):
            pool[len(pool)] = xp.empty_like(x)
            return x * 2, {}

        @staticmethod
        def vjp(dy, saved, *, needs, inputs):
            return (dy * 2,)

    x = leaf(1000)
    assert (
        accounting.profile(lambda x: th.apply(Scratch, x), {"x": x}).workspace_bytes == 4000
    )


def test_profile_without_a_gradient_says_so():
    with pytest.raises(th.tape.GraphError, match="does not require a gradient"):
        accounting.profile(lambda x: x * 2, {"x": th.ones(3)})


def test_ledger_events_end_where_they_began():
    x = leaf(8)
    with accounting.tracing(), memory.record() as ledger:
        (x.exp() * x).sum().backward()
    assert [(e.phase, e.op) for e in ledger.events] == [
        ("forward", "exp"),
        ("forward", "mul"),
        ("forward", "sum"),
        ("backward", "sum"),
        ("backward", "mul"),
        ("backward", "exp"),
    ]
    assert ledger.events[2].bands == {"exp.y": 32, "mul.b": 32}
    assert ledger.events[-1].bands == {}
    assert all(e.peak >= e.live > 0 for e in ledger.events)
    assert memory.current_ledger() is None


# --- why alive


def test_why_alive_names_variables_nodes_and_lines():
    x = leaf(3)
    hidden = x.exp()
    loss = (hidden * hidden).sum()
    lines = "\n".join(th.why_alive(hidden))
    assert "variable `hidden` of test_why_alive_names_variables_nodes_and_lines" in lines
    assert f"saved as 'y' by exp (node {hidden.node.counter}, made at {__file__}:" in lines
    assert "saved as 'a' by mul" in lines
    assert "in the graph of variable `loss`" in lines
    array = hidden.data
    del hidden
    lines = "\n".join(th.why_alive(array))
    assert "variable `array`" in lines
    assert "`hidden`" not in lines
    loss.backward()
    (only,) = th.why_alive(array)
    assert "variable `array`" in only


def test_why_alive_names_containers_attributes_and_gradients():
    class Model:
        pass

    model = Model()
    model.state = th.ones(3)
    assert th.why_alive(model.state) == ["attribute `state` of a Model"]
    kept = [th.ones(2), th.ones(4)]
    assert any("variable `kept`" in r and "element 1" in r for r in th.why_alive(kept[1]))
    x = leaf(3)
    (x * x).sum().backward()
    assert any("gradient of a leaf" in reason for reason in th.why_alive(x.grad))


def test_why_alive_names_a_notebooks_output_and_the_last_exception(monkeypatch):
    main = types.ModuleType("__main__")
    main.Out = {3: th.ones(2)}
    main._3 = main.Out[3]
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert th.why_alive(main.Out[3]) == ["Out[3] of the notebook"]

    def fail():
        big = th.ones(5)
        raise ValueError(big.shape)

    try:
        fail()
    except ValueError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
        monkeypatch.setattr(sys, "last_exc", error, raising=False)
    array = sys.last_value.__traceback__.tb_next.tb_frame.f_locals["big"].data
    assert any(
        "the last exception (ValueError), variable `big` of fail" in reason
        for reason in th.why_alive(array)
    )


def test_why_alive_keeps_nothing_alive():
    x = leaf(3)
    y = x.exp()
    th.why_alive(y)
    gc.disable()
    try:
        with accounting.tracing():
            before = accounting.numpy_bytes()
            z = x.exp()
            th.why_alive(z)
            del z
            assert accounting.numpy_bytes() == before
    finally:
        gc.enable()


def test_why_alive_leaves_what_locals_returned():
    x = th.ones(3)
    env = locals()
    assert any("variable `x`" in reason for reason in th.why_alive(x))
    assert env["x"] is x


def test_why_alive_leaves_what_a_caller_took_of_locals():
    held = []

    def inner(x):
        held.append(locals())
        return th.why_alive(x)

    x = th.ones(3)
    assert inner(x) and held[0]["x"] is x
