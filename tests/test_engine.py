"""The tape: what a sweep computes, in which order, what it frees, and how it refuses."""

import asyncio
import contextvars
import threading
import time
import weakref

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix import Constant, Input, Intermediate, Op, Output
from tinygrad_helix.errors import (
    DoubleBackwardError,
    DTypeError,
    GraphError,
    HelixError,
    InPlaceModificationError,
    NonScalarBackwardError,
    SavedTensorsFreedError,
    ShapeError,
)


def leaf(data, dtype=np.float64):
    return th.Tensor(np.asarray(data, dtype), requires_grad=True)


def const(data):
    return th.Tensor(np.asarray(data, np.float64))


class Spy(Op):
    """y = a·b, and a note of every vjp: its name and what it was asked for."""

    saves = {"a": Input(0), "b": Input(1)}
    log: list = []

    @staticmethod
    def forward(xp, a, b, *, needs, tag):
        return a * b, {"a": a, "b": b}

    @classmethod
    def vjp(cls, dy, saved, *, needs, inputs, tag):
        cls.log.append((tag, needs))
        return (
            dy * saved["b"] if needs[0] else None,
            dy * saved["a"] if needs[1] else None,
        )


@pytest.fixture
def log():
    Spy.log.clear()
    return Spy.log


def spy(a, b, tag):
    return th.apply(Spy, a, b, tag=tag)


# --- the graph


def test_nodes_know_where_they_come_from():
    x = leaf([1.0, 2.0])
    y = x.exp() * x
    node = y.node
    assert node.op is th.ops.elementwise.Mul and node.needs == (True, True)
    assert node.inputs == (((2,), np.dtype(np.float64)),) * 2
    assert node.outputs == (((2,), np.dtype(np.float64)),)
    assert [s.label for s in node.saved] == ["a", "b"]
    below, index = node.edges[0]
    assert below.op.name == "exp" and index == 0 and below.counter < node.counter
    assert type(node.edges[1][0]) is th.tape.Leaf and node.edges[0][0].edges[0] == x.edge
    file, _, line = node.place.rpartition(":")
    assert file == __file__ and int(line) > 0
    assert repr(node) == f"mul (node {node.counter}, made at {node.place})"
    assert node.reachable() == [node, below]
    assert x.node is None and y.node is node


def test_the_place_is_that_of_the_caller_however_the_op_was_called():
    x = leaf([[1.0, 2.0]])
    here = [
        y.node.place.rpartition(":")[0]
        for y in (x + 1, 1 - x, x.sum(), th.softmax(x), x.T, x[0], x @ x.T, th.rms_norm(x))
    ]
    assert set(here) == {__file__}


def test_nothing_is_recorded_without_need():
    x, y = leaf([1.0]), const([2.0])
    assert (y * y).node is None and not (y * y).requires_grad
    assert (y.exp() + x).node.edges[0] is None
    with th.no_grad():
        z = (x * x).exp()
    assert z.node is None and z.is_leaf and not z.requires_grad and z.grad is None
    with pytest.raises(GraphError, match="does not require a gradient"):
        z.backward()


def test_nothing_stays_alive_under_no_grad():
    x = leaf(np.ones(1000))
    with th.no_grad():
        y = x.exp()
        array = weakref.ref(y.data)
        z = y * y
        del y
    assert array() is None and z.shape == (1000,)


# --- the order of a sweep


def test_each_node_once_and_the_latest_first(log):
    x = leaf([3.0])
    a = spy(x, x, "a")
    b = spy(a, x, "b")
    c = spy(a, b, "c")
    spy(c, c, "unused")
    d = spy(c, a, "d")
    (d + b).backward()
    assert [tag for tag, _ in log] == ["d", "c", "b", "a"]
    # d = x^7 and b = x^3
    assert x.grad.item() == 7 * 3**6 + 3 * 3**2


def test_nothing_is_computed_that_nobody_wants(log):
    x, w, v = leaf([2.0]), leaf([3.0]), leaf([5.0])
    a = spy(x, w, "a")
    b = spy(a, v, "b")
    c = spy(b, 2.0, "c")
    assert th.grad(c, v)[0].item() == 2 * 2 * 3
    assert log == [("c", (True, False)), ("b", (False, True))]
    log.clear()
    a = spy(const([2.0]), w, "a")
    c = spy(spy(a, a, "b"), v, "c")
    c.backward()
    assert log == [("c", (True, True)), ("b", (True, True)), ("a", (False, True))]
    log.clear()
    c = spy(spy(x, w, "a"), v, "b")
    assert th.grad(c, [c])[0].item() == 1.0 and log == []


def test_saved_tensors_go_one_node_after_the_other():
    alive = []

    class Watch(Op):
        @staticmethod
        def forward(xp, x, *, needs):
            return x * 1.0, {}

        @staticmethod
        def vjp(dy, saved, *, needs, inputs):
            alive.append([r() is not None for r in arrays])
            return (dy,)

    x = leaf(np.ones(10))
    y = th.apply(Watch, x)
    arrays = []
    for _ in range(3):
        y = th.apply(Watch, y.exp())
        arrays.append(weakref.ref(y.node.edges[0][0].saved[0].value))
    y = y.sum()
    y.backward()
    # Each Watch runs before the exp below it, after all exps above it.
    assert alive == [
        [True, True, True],
        [True, True, False],
        [True, False, False],
        [False, False, False],
    ]


def test_cotangents_are_dropped_when_used():
    seen = []

    class Watch(Op):
        @staticmethod
        def forward(xp, x, *, needs):
            return x * 1.0, {}

        @staticmethod
        def vjp(dy, saved, *, needs, inputs):
            seen.append(weakref.ref(dy))
            assert all(r() is None for r in seen[:-2])
            return (dy * 2.0,)

    y = leaf(np.ones(3))
    for _ in range(6):
        y = th.apply(Watch, y)
    y.sum().backward()
    assert len(seen) == 6


def test_deep_graphs_are_fast_enough_to_use():
    x = leaf([1.0])
    y = x
    for _ in range(20_000):
        y = y * 1.0001
    start = time.perf_counter()
    assert th.saved_bytes(y) == 0  # numbers take no storage
    (g,) = th.grad(y, x, retain_graph=True)
    (g2,) = th.grad(y, x)
    assert time.perf_counter() - start < 20
    assert g.item() == g2.item() == pytest.approx(1.0001**20_000)


# --- backward


def test_leaves_accumulate_into_arrays_of_their_own():
    x = leaf([1.0, 2.0])
    (x * x).sum().backward()
    first = x.grad.data
    (x * 3.0).sum().backward()
    assert x.grad.data is first and first.tolist() == [5.0, 7.0]
    x.grad = None
    (x * 3.0).sum().backward()
    assert x.grad.data is not first and x.grad.tolist() == [3.0, 3.0]


def test_several_outputs_in_one_sweep(log):
    x = leaf([2.0])
    a = spy(x, x, "a")
    th.backward([a, spy(a, x, "b"), x], [const([1.0]), None, const([10.0])])
    assert [tag for tag, _ in log] == ["b", "a"]
    assert x.grad.item() == 2 * 2 + 3 * 4 + 10


def test_cotangents_of_other_kinds():
    x = leaf([1.0, 2.0])
    y = x * 2.0
    y.backward(np.array([1.0, 3.0], np.float32), retain_graph=True)
    assert x.grad.dtype == np.float64 and x.grad.tolist() == [2.0, 6.0]
    y.backward(np.array([1, 1]))
    assert x.grad.tolist() == [4.0, 8.0]
    with pytest.raises(GraphError, match="2 outputs got 1 cotangents"):
        th.backward([y, y], [y])
    with pytest.raises(DTypeError, match="starts at a Tensor; got float"):
        th.backward(1.0)


def test_an_output_that_is_its_own_input():
    x = leaf([1.0, 2.0])
    x.backward(const([3.0, 4.0]))
    assert x.grad.tolist() == [3.0, 4.0]
    x.sum().backward()
    assert x.grad.tolist() == [4.0, 5.0]
    assert th.grad(x, x, const([1.0, 7.0]))[0].tolist() == [1.0, 7.0]


def test_a_sweep_that_fails_changes_no_gradient():
    class Fails(Op):
        @staticmethod
        def forward(xp, x, *, needs):
            return x * 1.0, {}

        @staticmethod
        def vjp(dy, saved, *, needs, inputs):
            raise ZeroDivisionError

    x, w = leaf([1.0]), leaf([2.0])
    (x * w).sum().backward()
    y = th.apply(Fails, x) * w
    with pytest.raises(ZeroDivisionError):
        y.backward()
    assert (x.grad.item(), w.grad.item()) == (2.0, 1.0)
    (x * w).sum().backward()
    assert (x.grad.item(), w.grad.item()) == (4.0, 2.0)


def test_the_gradient_of_a_result_is_not_kept():
    x = leaf([1.0])
    y = x * 2.0
    (y * y).backward()
    assert y.grad is None and x.grad.item() == 8.0
    with pytest.raises(GraphError, match="only a leaf owns a gradient"):
        y.grad = const([1.0])


# --- grad


def test_grad_returns_a_tuple_and_touches_nothing():
    x, w = leaf([2.0]), leaf([3.0])
    y = x * w
    result = th.grad(y, (x, w), retain_graph=True)
    assert type(result) is tuple and [g.item() for g in result] == [3.0, 2.0]
    assert type(th.grad(y, x)) is tuple
    assert x.grad is None and w.grad is None
    assert not result[0].requires_grad


def test_grad_of_results_and_of_one_output_among_several():
    x = leaf([1.0, 2.0, 3.0, 4.0])
    a, b = th.split(x * 2.0, 2)
    y = (a * b).sum()
    ga, gb, gx = th.grad(y, [a, b, x])
    assert ga.tolist() == [6.0, 8.0] and gb.tolist() == [2.0, 4.0]
    assert gx.tolist() == [12.0, 16.0, 4.0, 8.0]
    z = x.exp()
    t = z.sum()
    assert th.grad(t, [z, t])[1].item() == 1.0
    same = th.grad((x * x).sum(), [x, x])
    assert same[0].tolist() == same[1].tolist() == [2.0, 4.0, 6.0, 8.0]


def test_grad_of_two_outputs_with_two_cotangents():
    x = leaf([2.0])
    (g,) = th.grad([x * x, x * 3.0], x, [const([10.0]), const([1.0])])
    assert g.item() == 43.0
    (g,) = th.grad([x * x], [x], const([10.0]))
    assert g.item() == 40.0


def test_unused_inputs():
    x, u = leaf([1.0]), leaf([1.0])
    y = x.exp()
    with pytest.raises(
        GraphError, match=r"do not depend on input 1 .*\(1,\).*allow_unused"
    ):
        th.grad(y, [x, u])
    (g, none) = th.grad(y, [x, u], allow_unused=True)  # the failed call freed nothing
    assert g.item() == np.e and none is None
    with pytest.raises(GraphError, match=r"input 0 .* requires no gradient"):
        th.grad(x.exp(), const([1.0]))
    with pytest.raises(GraphError, match=r"input 0 .*\(list\)|input 0 .*int"):
        th.grad(x.exp(), [3])
    a, b = th.split(leaf([1.0, 2.0]), 1)
    with pytest.raises(GraphError, match="input 0"):
        th.grad(a, b)


def test_retain_graph_by_default_follows_create_graph():
    x = leaf([1.0])
    y = x.exp()
    th.grad(y, x, create_graph=True)
    th.grad(y, x, create_graph=True, retain_graph=False)
    with pytest.raises(SavedTensorsFreedError):
        th.grad(y, x)
    y = x.exp()
    th.grad(y, x, retain_graph=True)
    th.grad(y, x)
    with pytest.raises(SavedTensorsFreedError):
        y.backward()


def test_a_graph_without_saved_tensors_can_be_swept_again():
    x = leaf([1.0, 2.0])
    y = (x + x).sum()
    for _ in range(3):
        y.backward()
    assert x.grad.tolist() == [6.0, 6.0]


# --- second derivatives


def test_higher_derivatives():
    x = leaf([2.0])
    y = x**5
    for power, factor in ((4, 5), (3, 20), (2, 60), (1, 120)):
        (y,) = th.grad(y, x, create_graph=True)
        assert y.item() == factor * 2.0**power
    (y,) = th.grad(y, x, create_graph=True)
    assert y.item() == 120.0
    (y,) = th.grad(y, x, allow_unused=True)
    assert y is None or y.item() == 0.0


def test_a_hessian():
    x = leaf([1.0, 2.0, 3.0])
    y = (x * x).sum() * x[0]
    (g,) = th.grad(y, x, create_graph=True)
    hessian = [th.grad(g[i], x, retain_graph=True)[0].tolist() for i in range(3)]
    assert hessian == [[6.0, 4.0, 6.0], [4.0, 2.0, 0.0], [6.0, 0.0, 2.0]]


def test_gradients_of_gradients_reach_leaves_and_cotangents():
    x, w, dy = leaf([2.0]), leaf([3.0]), leaf([5.0])
    (g,) = th.grad(w * x**2, x, dy, create_graph=True)  # 2·w·x·dy
    g.backward()
    assert (x.grad.item(), w.grad.item(), dy.grad.item()) == (30.0, 20.0, 12.0)


def test_second_derivatives_through_results_and_outputs():
    x = leaf([0.3])
    y = x.tanh()
    (g,) = th.grad(y * y, y, create_graph=True)
    assert th.grad(g, x)[0].item() == pytest.approx(2 * (1 - np.tanh(0.3) ** 2))
    (g,) = th.grad(x.sigmoid().exp(), x, create_graph=True)
    assert th.gradcheck(lambda x: x.sigmoid().exp(), x, order=2)
    # The edge of a saved output is made in the sweep: no cycle in the graph before.
    z = x.exp()
    node = weakref.ref(z.node)
    del z
    assert node() is None


def test_no_second_derivative_where_it_would_be_wrong():
    class Kept(Op):
        saves = {"twice": Intermediate(), "sign": Constant()}

        @staticmethod
        def forward(xp, x, *, needs):
            return (2 * x) ** 2, {"twice": 2 * x, "sign": x > 0}

        @staticmethod
        def vjp(dy, saved, *, needs, inputs):
            return (dy * 4 * saved["twice"],)

    x = leaf([1.0])
    y = th.apply(Kept, x) * x.exp()
    with pytest.raises(DoubleBackwardError, match=r"kept .* intermediate 'twice'"):
        th.grad(y, x, create_graph=True)
    (g,) = th.grad(y, x)  # the refusal came before anything was freed
    assert g.item() == pytest.approx(4 * np.e + 8 * np.e)


# --- writing in place


def test_versions_are_of_the_storage():
    x = const([1.0, 2.0, 3.0])
    y, z = x[1:], x.reshape(3, 1)
    assert (x.version, y.version, z.version) == (0, 0, 0)
    y += 1.0
    assert (x.version, y.version, z.version) == (1, 1, 1)
    z[0] = 9.0
    x.copy_(np.zeros(3))
    assert (x.version, y.version, z.version) == (3, 3, 3)
    assert (x + 0.0).version == 0 and x.detach().version == 3


def test_a_write_that_fails_writes_nothing():
    x = const([1.0, 2.0, 3.0])
    for write, error in (
        (lambda: x.__iadd__(const([1.0, 2.0])), ShapeError),
        (lambda: x.copy_([1.0]), ShapeError),
        (lambda: x.__setitem__(slice(2), const([1.0, 2.0, 3.0])), ShapeError),
        (lambda: x.__imul__(th.Tensor([1.0, 2.0, 3.0])), DTypeError),
        (lambda: x.__iadd__("a"), DTypeError),
    ):
        with pytest.raises(error):
            write()
    assert x.tolist() == [1.0, 2.0, 3.0] and x.version == 0
    ints = th.Tensor([1, 2])
    for write in (lambda: ints.__itruediv__(2), lambda: ints.__iadd__(0.5)):
        with pytest.raises(DTypeError):
            write()
    assert ints.tolist() == [1, 2]
    frozen = const([1.0]).broadcast_to(3)
    with pytest.raises(GraphError, match="read-only"):
        frozen += 1.0


def test_writes_before_the_forward_and_after_the_sweep_are_fine():
    x, c = leaf([1.0, 2.0]), const([3.0, 4.0])
    c += 1.0
    y = (x * c).sum()
    y.backward()
    c += 1.0
    assert x.grad.tolist() == [4.0, 5.0]
    y = (x * c).sum()
    with th.no_grad():
        x += 1.0  # x was not saved: c needs no gradient
    y.backward()
    assert x.grad.tolist() == [9.0, 11.0]


def test_a_constant_that_was_written_to():
    x = leaf([1.0, 2.0, 3.0])
    index = th.Tensor([0, 0])
    y = x[index].sum()
    index[0] = 2
    with pytest.raises(InPlaceModificationError, match=r"getitem .*'index0' \(2,\)"):
        y.backward()
    mask = th.Tensor([True, False, True])
    y = th.where(mask, x, 0.0).sum()
    mask[0] = False
    with pytest.raises(InPlaceModificationError, match=r"where .*'condition'"):
        y.backward()
    assert x.grad is None


def test_the_message_says_where_and_what():
    x = leaf([1.0, 2.0])
    y = x.exp()
    total = y.sum()
    with th.no_grad():
        y *= 2.0
    with pytest.raises(InPlaceModificationError) as info:
        total.backward()
    text = str(info.value)
    for part in ("exp", y.node.place, "'y' (2,)", "version 1", "saved at 0", "copy"):
        assert part in text


def test_an_optimiser_step_between_two_sweeps_is_seen():
    x, w = leaf([1.0]), leaf([2.0])
    y = x * w
    y.backward(retain_graph=True)
    with th.no_grad():
        w -= 0.1
    with pytest.raises(InPlaceModificationError):
        y.backward()
    assert x.grad.item() == 2.0


# --- what an op may not do


def broken(**members):
    def forward(xp, x, *, needs):
        return x * 1.0, {}

    def vjp(dy, saved, *, needs, inputs):
        return (dy,)

    methods = {"forward": forward, "vjp": vjp, **members}
    members = {
        k: staticmethod(v) if k in ("forward", "vjp") else v for k, v in methods.items()
    }
    return type("Broken", (Op,), members)


@pytest.mark.parametrize(
    ("saves", "kept", "text"),
    [
        ({}, lambda x, y: {"x": x}, r"broken saved 'x', .*declares nothing"),
        ({"a": Input(0)}, lambda x, y: {"x": x}, r"broken saved 'x', .*\(a\)"),
        ({"x": Input(0)}, lambda x, y: {"x": x.copy()}, r"'x' as Input\(index=0\)"),
        ({"x": Input(0)}, lambda x, y: {"x": y}, "saved another array"),
        ({"x": Input(1)}, lambda x, y: {"x": x}, "saved another array"),
        ({"y": Output()}, lambda x, y: {"y": x}, r"'y' as Output\(index=0\)"),
        ({"y": Output(1)}, lambda x, y: {"y": y}, "saved another array"),
    ],
)
def test_saving_what_was_not_declared(saves, kept, text):
    def forward(xp, x, *, needs):
        y = x * 1.0
        return y, kept(x, y)

    op = broken(saves=saves, forward=forward)
    with pytest.raises(GraphError, match=text):
        th.apply(op, leaf([1.0]))
    with th.no_grad():  # there it does not matter: nothing is kept
        assert th.apply(op, leaf([1.0])).item() == 1.0


def test_a_broadcasting_op_returns_the_shape_of_its_output():
    def forward(xp, a, b, *, needs):
        return a + b, {}

    def vjp(dy, saved, *, needs, inputs):
        return dy, dy.sum(axis=0)

    op = broken(broadcasts=True, forward=forward, vjp=vjp)
    y = th.apply(op, leaf(np.ones((2, 3))), leaf(np.ones(3))).sum()
    with pytest.raises(
        GraphError, match=r"\(3,\) .*shape \(2, 3\) is due .*un-broadcasting"
    ):
        y.backward()


def test_cotangents_are_cast_to_the_input():
    op = broken(vjp=lambda dy, saved, *, needs, inputs: (dy.astype(np.float64),))
    x = leaf([1.0], np.float32)
    th.apply(op, x).backward()
    assert x.grad.dtype == np.float32


def test_a_vjp_may_return_what_it_was_given():
    op = broken()
    x = leaf([1.0, 2.0])
    dy = np.array([3.0, 4.0])
    y = th.apply(op, x)
    y.backward(th.Tensor(dy), retain_graph=True)
    y.backward(th.Tensor(dy))
    assert dy.tolist() == [3.0, 4.0] and x.grad.tolist() == [6.0, 8.0]
    # The same array for two inputs that are one leaf.
    two = broken(
        forward=lambda xp, a, b, *, needs: (a + b, {}),
        vjp=lambda dy, saved, *, needs, inputs: (dy, dy),
    )
    x.grad = None
    th.apply(two, x, x).backward(th.Tensor(dy))
    assert dy.tolist() == [3.0, 4.0] and x.grad.tolist() == [6.0, 8.0]


def test_what_a_vjp_returns_for_others_is_ignored():
    two = broken(
        forward=lambda xp, a, b, *, needs: (a + b, {}),
        vjp=lambda dy, saved, *, needs, inputs: (dy, "nobody looks at this"),
    )
    x = leaf([1.0])
    th.apply(two, x, const([1.0])).backward()
    assert x.grad.item() == 1.0


def test_none_and_numbers_as_inputs():
    seen = []

    def forward(xp, a, b, c, *, needs):
        seen.append((type(a).__name__, b, c, needs))
        return a * b, {"b": b}

    def vjp(dy, saved, *, needs, inputs):
        assert inputs == (((1,), np.dtype(np.float64)), None, None)
        return dy * saved["b"], None, None

    op = broken(saves={"b": Input(1)}, forward=forward, vjp=vjp)
    x = leaf([1.0])
    y = th.apply(op, x, 3, None)
    y.backward()
    assert seen == [("ndarray", 3, None, (True, False, False))] and x.grad.item() == 3.0
    assert th.saved_bytes(th.apply(op, x, np.float32(2.5), None)) == 0
    assert seen[-1][1] == 2.5 and type(seen[-1][1]) is float
    with pytest.raises(
        DTypeError, match="broken takes Tensors, arrays and numbers; got str"
    ):
        th.apply(op, x, "a", None)
    with pytest.raises(DTypeError, match="got list"):
        th.apply(op, x, [1.0], None)


def test_an_op_without_directions():
    class Nothing(Op):
        pass

    with pytest.raises(GraphError, match="static method forward"):
        th.apply(Nothing, leaf([1.0]))
    op = type("HalfDone", (Op,), {"forward": staticmethod(lambda xp, x, *, needs: (x, {}))})
    assert op.name == "half_done"
    with pytest.raises(GraphError, match="static method vjp"):
        th.apply(op, leaf([1.0])).backward()


def test_arrays_in_arrays_out():
    x = np.array([1.0, 2.0])
    for y in (th.exp(x), th.add(x, 1), th.matmul(x, x), th.sum(x), th.rms_norm(x)):
        assert isinstance(y, np.ndarray)
    assert isinstance(th.add(1, 2.5), np.ndarray) and th.add(1, 2.5).dtype == np.float32
    assert isinstance(th.gated_scan(x.reshape(1, 2, 1), x.reshape(1, 2, 1))[0], np.ndarray)


def test_scatter_add_adds_to_what_is_there():
    backend = th.memory.backend_of(np.zeros(1))
    values = np.array([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
    for index in (np.array([1, -1, 1]), (np.array([1, 2, 1]),), np.array([1, 2, 1])):
        target = np.ones((3, 2))
        backend.scatter_add(target, index, values)
        assert target.tolist() == [[1, 1], [102, 203], [11, 21]]
    target = np.ones(3)
    backend.scatter_add(target, np.array([0, 0, 2]), values[:, 0])
    assert target.tolist() == [12, 1, 101]


# --- modes, threads, tasks


def test_modes_do_not_leak_into_threads():
    states = []

    def work():
        states.append(th.is_grad_enabled())
        with th.no_grad():
            inside.set()
            leave.wait(10)
        states.append(th.is_grad_enabled())

    inside, leave = threading.Event(), threading.Event()
    with th.no_grad():
        thread = threading.Thread(target=contextvars.Context().run, args=(work,))
        thread.start()
        assert inside.wait(10)
    assert th.is_grad_enabled()  # although the other thread is inside no_grad
    leave.set()
    thread.join()
    assert states == [True, True]


def test_modes_do_not_leak_between_tasks():
    async def quiet(start, go):
        with th.no_grad():
            start.set()
            await go.wait()
            return th.is_grad_enabled()

    async def main():
        start, go = asyncio.Event(), asyncio.Event()
        task = asyncio.ensure_future(quiet(start, go))
        await start.wait()
        outside = th.is_grad_enabled()
        go.set()
        return outside, await task

    assert asyncio.run(main()) == (True, False)


def test_graphs_of_threads_are_apart():
    results = {}

    def work(i):
        x = leaf(np.full(50, float(i)))
        y = x
        for _ in range(200):
            y = y * 1.0 + x
        y.sum().backward()
        results[i] = x.grad.data

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all((results[i] == 201.0).all() for i in range(4))


# --- errors are one tree


def test_the_tree_of_errors():
    for error, builtin in (
        (ShapeError, ValueError),
        (DTypeError, TypeError),
        (GraphError, RuntimeError),
        (SavedTensorsFreedError, GraphError),
        (InPlaceModificationError, GraphError),
        (DoubleBackwardError, GraphError),
        (NonScalarBackwardError, GraphError),
    ):
        assert issubclass(error, HelixError) and issubclass(error, builtin)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: x + const([1.0, 2.0]), ShapeError, r"add of shapes \(2, 3\) and \(2,\)"),
        (lambda x: x @ x, ShapeError, r"matmul of shapes \(2, 3\) and \(2, 3\)"),
        (lambda x: x @ 2.0, DTypeError, "matmul takes Tensors and arrays; got float"),
        (lambda x: x @ x.astype("float32").T, DTypeError, "a float64, b float32"),
        (lambda x: x.reshape(4), ShapeError, r"\(2, 3\) \(6 elements\) to \(4,\)"),
        (lambda x: x.reshape("a"), DTypeError, "reshape got"),
        (lambda x: x.transpose(0), ShapeError, "each of its 2 axes once"),
        (lambda x: x.transpose(0, 0), ShapeError, "names an axis twice"),
        (lambda x: x.broadcast_to(3, 3), ShapeError, r"does not broadcast to \(3, 3\)"),
        (lambda x: x.sum(axis=2), ShapeError, "axis 2 of a Tensor of 2 axes"),
        (lambda x: x.sum(axis=(0, -2)), ShapeError, "names an axis twice"),
        (lambda x: x.sum(axis="a"), DTypeError, "Give None, an int"),
        (lambda x: x[:0].mean(), ShapeError, "nothing to take the mean of"),
        (lambda x: x[:0].max(axis=0), ShapeError, "nothing to take the max of"),
        (lambda x: x[:, :0].argmax(axis=1), ShapeError, "nothing to take the argmax of"),
        (lambda x: x[5], IndexError, r"x\[index\] of a Tensor of shape \(2, 3\)"),
        (lambda x: x[0, 0, 0], IndexError, "too many indices"),
        (lambda x: x["a"], DTypeError, "cannot be indexed by str"),
        (lambda x: x[np.array([0.5])], DTypeError, "ints or bools; got float64"),
        (lambda x: x[[True, False, True]], IndexError, "boolean"),
        (lambda x: th.cat([]), ShapeError, "at least one Tensor"),
        (lambda x: th.cat([x, x[0]]), ShapeError, "All other sizes must be equal"),
        (lambda x: th.cat([x, 1.0]), DTypeError, "cat takes Tensors and arrays; got float"),
        (lambda x: th.stack([x, x[:1]]), ShapeError, "They must be equal"),
        (lambda x: th.split(x, [1, 2]), ShapeError, "must add up to 2"),
        (lambda x: th.split(x, 0), ShapeError, "at least 1"),
        (lambda x: th.where(x, x, x), DTypeError, "condition of bools; got float64"),
        (lambda x: th.where(x > 0, x[:, :2], x), ShapeError, "which do not broadcast"),
        (lambda x: x.astype("no such"), DTypeError, "which is no dtype"),
        (lambda x: x.astype("complex64"), DTypeError, "floats, ints or bools"),
        (lambda x: x < const([1.0, 2.0]), ShapeError, "less of shapes"),
        (lambda x: th.embedding(x, [2]), ShapeError, "indices 2 to 2 for a weight of 2"),
        (lambda x: th.embedding(x, [-1]), ShapeError, "indices -1 to -1"),
        (lambda x: th.embedding(x, [0.5]), DTypeError, "index of ints; got float64"),
        (lambda x: th.embedding(x[0], [0]), ShapeError, r"weight \[V, D\]"),
        (
            lambda x: th.cross_entropy(x, [0]),
            ShapeError,
            r"target of shape \(2,\); got \(1,\)",
        ),
        (lambda x: th.cross_entropy(x, [0, 3]), ShapeError, "targets 0 to 3 for 3 classes"),
        (lambda x: th.cross_entropy(x, [0.0, 1.0]), DTypeError, "target of ints"),
        (lambda x: th.cross_entropy(x[:0], np.zeros(0, int)), ShapeError, "no rows"),
        (
            lambda x: th.rms_norm(x, x[0, :2]),
            ShapeError,
            r"gain of shape \(3,\); got \(2,\)",
        ),
        (lambda x: th.rms_norm(x[:, :0]), ShapeError, "at least one element"),
        (lambda x: th.rms_norm(x, x[0].astype("float32")), DTypeError, "gain float32"),
        (lambda x: th.Tensor([2]) ** -1, DTypeError, "negative integer powers"),
        (lambda x: th.Tensor([2]) ** th.Tensor([-1]), DTypeError, "pow of int64 and int64"),
        (lambda x: x + "a", DTypeError, "add takes Tensors, arrays and numbers; got str"),
        (lambda x: x + None, DTypeError, "got None"),
        (lambda x: th.where(x > 0, x, None), DTypeError, "got None"),
        (lambda x: x.softmax(axis=5), ShapeError, "softmax got axis 5"),
        (lambda x: x[0, 0].softmax(), ShapeError, "without axes"),
    ],
)
def test_bad_input(call, error, text):
    x = leaf(np.arange(6.0).reshape(2, 3))
    with pytest.raises(error, match=text):
        call(x)
    assert x.grad is None and x.version == 0 and x.tolist() == [[0, 1, 2], [3, 4, 5]]
