"""Who owns an array: gradients, hooks, storages, writes, and modes across threads."""

import asyncio
import sys
import threading
import weakref

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix import fresh, memory
from tinygrad_helix.errors import DTypeError, GraphError, InPlaceModificationError
from tinygrad_helix.modes import is_anomaly_detected


def leaf(values, dtype="float64"):
    return th.tensor(values, dtype=dtype, requires_grad=True)


class Returning(th.Op):
    """Its vjp returns what `make` makes."""

    made: list = []
    make = None

    @staticmethod
    def forward(xp, x, *, needs):
        return x + 0, {}

    @classmethod
    def vjp(cls, dy, saved, *, needs, inputs):
        return (cls.make(dy),)


# --- gradients


def test_calibration_copies_where_counts_say_nothing():
    found = list(fresh.limits)
    assert min(found) > 0, "every gradient is copied on this interpreter"
    try:
        fresh.calibrate(lambda make: bool(make() is None))  # never kept
        assert fresh.limits == [0, 0]
        fresh.calibrate(lambda make: make() is not None)  # kept whoever holds it
        assert fresh.limits == [0, 0]
        x = leaf([1.0, 2.0])
        (x * 2).sum().backward()
        assert x.grad.tolist() == [2, 2]
    finally:
        fresh.limits[:] = found


@pytest.mark.parametrize("kind", [0, 1])
def test_calibration_takes_the_least_limit(kind):
    # an interpreter that borrows references counts fewer; one that counts more is watched
    found = list(fresh.limits)

    def references(make):
        value = make()
        is_view = value.base is not None
        return is_view, sys.getrefcount(value.base if is_view else value)

    alone = dict(map(references, (lambda: np.ones(1), lambda: np.ones(1)[:])))
    for extra in range(-2, 2):

        def kept(make, extra=extra):
            is_view, here = references(make)
            return here - alone[is_view] + found[is_view] + extra <= fresh.limits[is_view]

        try:
            fresh.calibrate(kept)
            due = found[kind] + extra
            assert fresh.limits[kind] == (due if due <= found[kind] else 0)
        finally:
            fresh.limits[:] = found


def test_a_leaf_takes_a_fresh_gradient_without_a_copy():
    refs = []

    class Fresh(Returning):
        @staticmethod
        def make(dy):
            dx = dy * 2
            refs.append(weakref.ref(dx))
            return dx

    x = leaf([1.0, 2.0])
    th.apply(Fresh, x).sum().backward()
    assert x.grad.data is refs[0](), "copied although nobody else held it"


def test_a_leaf_copies_what_an_op_keeps():
    constant = np.array([1.0, 2.0])

    class Kept(Returning):
        @staticmethod
        def make(dy):
            return constant

    x = leaf([0.0, 0.0])
    for _ in range(2):
        th.apply(Kept, x).sum().backward()
    assert x.grad.tolist() == [2, 4]
    assert constant.tolist() == [1, 2]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_the_gradient_of_one_element_can_be_written_to(shape):
    x = leaf(np.ones(shape))
    x.mean().backward()
    x.mean().backward()
    assert x.grad.data.flags.writeable
    assert float(x.grad.sum()) == 2


def test_a_read_only_gradient_is_replaced_not_written():
    a, b = leaf([1.0, 1.0]), leaf([1.0, 1.0])
    b.grad = th.broadcast_to(th.zeros(1, dtype="float64"), (2,))
    (a * b).sum().backward()
    assert a.grad.tolist() == [1, 1]
    assert b.grad.tolist() == [1, 1]


def test_hooks_may_keep_what_they_see():
    kept = []
    x = leaf([1.0, 2.0])
    x.register_hook(lambda dx: kept.append(dx))
    for _ in range(2):
        (x * x).sum().backward()
    assert [k.tolist() for k in kept] == [[2, 4], [2, 4]]
    assert x.grad.tolist() == [4, 8]
    kept.clear()
    x = leaf([1.0, 1.0])
    y = x * 5
    y.node.register_hook(lambda dxs, dys: kept.append(dxs[0]))
    (x * 3 + y).sum().backward()
    assert kept[0].tolist() == [5, 5]
    assert x.grad.tolist() == [8, 8]


# --- saved tensors and storages


def test_a_write_during_the_sweep_is_noticed():
    x, w = leaf([2.0]), leaf([3.0])
    y = (x * w) * 1.0

    def write(dy):
        with th.no_grad():
            w.copy_(th.tensor([100.0], dtype="float64"))

    y.register_hook(write)
    with pytest.raises(InPlaceModificationError, match=r"mul .* saved .b."):
        y.backward()
    assert x.grad is None


def test_a_strided_view_shares_its_storage():
    base = np.ones(10)
    wide = np.lib.stride_tricks.as_strided(base, (1000, 10), (0, 8))
    x = th.Tensor(wide, requires_grad=True)
    whole = th.Tensor(base)
    y = x * leaf(np.ones(10))
    assert th.saved_bytes(y) == base.nbytes + 80
    whole[0] = 5.0
    with pytest.raises(InPlaceModificationError):
        y.sum().backward()


def test_bands_fall_when_a_graph_is_dropped_without_a_sweep():
    x = leaf(np.ones(1000))
    with memory.record() as ledger:
        for _ in range(3):
            y = x.exp().sum()
            del y
        (x * 2.0).sum()
    assert ledger.events[-1].bands == {}


def test_writing_through_data():
    x = leaf([1.0, 2.0])
    y = x * x
    x.data -= 1
    assert x.tolist() == [0, 1]
    with pytest.raises(InPlaceModificationError):
        y.sum().backward()
    with pytest.raises(GraphError, match="cannot be exchanged"):
        x.data = np.zeros(2)


# --- what is written in place, and what enters an op


@pytest.mark.parametrize(
    ("target", "value"),
    [
        (th.tensor([1, 2]), 0.7),
        (th.tensor([1, 2]), np.float64(3)),
        (th.tensor([1, 2], dtype="uint8"), th.tensor([300, 1])),
        (th.tensor([1, 2], dtype="uint8"), 300),
        (th.tensor([1, 2], dtype="uint8"), -1),
        (th.tensor([1.0, 2.0]), np.ones(2)),
    ],
)
def test_nothing_is_cut_silently(target, value):
    before = target.tolist()
    with pytest.raises(DTypeError, match="cannot hold it"):
        target[:] = value
    assert target.tolist() == before
    assert target.version == 0


def test_what_fits_is_written():
    small = th.tensor([1, 2], dtype="uint8")
    small[:] = th.tensor([255, 0])
    assert small.tolist() == [255, 0]
    floats = th.tensor([1.0, 2.0])
    floats += 1
    floats *= th.tensor([2, 3])
    floats[0] = True
    assert floats.tolist() == [1, 9]


def test_arrays_of_other_kinds():
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    matrix = np.ones((2, 2)).view(np.matrix)
    assert (x * matrix).tolist() == x.tolist(), "elementwise, whatever a matrix does"
    assert type((x * matrix).data) is np.ndarray
    for strange in (np.array([1j, 2j]), np.array(["1", "2"]), np.array([object(), 1])):
        with pytest.raises(DTypeError, match="mul takes"):
            x * strange
    with pytest.raises(DTypeError, match="'bfloat17' is no dtype"):
        th.tensor([1.0], dtype="bfloat17")


# --- places


def test_a_layers_place_is_the_users_line_and_its_own():
    layer = th.nn.Linear(2, 2)
    y = layer(th.ones(1, 2))
    assert y.node.place.startswith(__file__)
    assert "(in " in y.node.place
    assert "layers.py" in y.node.place


# --- modes


def test_a_mode_object_shared_by_threads():
    mode = th.no_grad()
    inside, leave = threading.Event(), threading.Event()
    seen = []

    def other():
        with mode:
            inside.set()
            leave.wait(10)
        seen.append(th.is_grad_enabled())

    thread = threading.Thread(target=other)
    with mode:
        thread.start()
        inside.wait(10)
    assert th.is_grad_enabled()
    leave.set()
    thread.join()
    assert seen == [True]


def test_a_mode_on_coroutines_and_generators():
    @th.no_grad()
    async def answer():
        await asyncio.sleep(0)
        return th.is_grad_enabled()

    assert asyncio.run(answer()) is False
    assert th.is_grad_enabled()
    with pytest.raises(DTypeError, match="generator function"):

        @th.no_grad()
        def numbers():
            yield 1

    with pytest.raises(DTypeError, match=r"Write @no_grad\(\)"):

        @th.no_grad
        def forgotten():
            pass


# --- what must not change by the way


def test_requiring_a_gradient_twice_keeps_the_leaf():
    x = leaf([1.0])
    y = x * x
    edge = x.edge
    x.requires_grad = True
    assert x.edge == edge
    x.requires_grad = False
    x.requires_grad = True
    y.backward()
    assert x.grad.tolist() == [2], "the graph made before still ends at this Tensor"


def test_a_recorded_sweep_under_no_grad():
    x = leaf([2.0])
    y = x * x * x
    with th.no_grad():
        (g,) = th.grad(y, x, create_graph=True)
    assert th.grad(g, x)[0].item() == 12


def test_gradients_are_no_part_of_the_peak():
    small, large = leaf(np.ones(100_000)), leaf(np.ones(200_000))
    p = th.accounting.profile(
        lambda small, large: small.exp().tanh().sum() + (large * 2.0).sum(),
        {"small": small, "large": large},
        parameters=("large",),
    )
    assert p.events[-1].gradients >= large.nbytes + small.nbytes
    # What tanh's vjp has beside large's gradient, which the sweep made before it: two saved
    # arrays and two of its own, each half as long.
    assert p.peak_bytes < 1.1 * 2 * large.nbytes


def test_a_generator_closed_inside_another_mode_leaves_both_as_they_were():
    def generator(mode):
        with mode():
            yield

    for mode, other in (
        (th.no_grad, th.detect_anomaly),
        (th.no_grad, th.enable_grad),
        (th.detect_anomaly, th.no_grad),
    ):
        running = generator(mode)
        next(running)
        with other():
            running.close()
            assert th.is_grad_enabled() is (other is not th.no_grad)
        assert th.is_grad_enabled()
        assert not is_anomaly_detected()


def test_one_mode_object_nests_in_itself():
    mode = th.no_grad()
    with mode:
        with th.enable_grad():
            with mode:
                assert not th.is_grad_enabled()
            assert th.is_grad_enabled()
        assert not th.is_grad_enabled()
    assert th.is_grad_enabled()
