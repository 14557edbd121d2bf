"""gradcheck and audit: right ops pass, and every planted fault is found and named."""

import re
import tracemalloc

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix import Constant, Input, Intermediate, Op, Output
from tinygrad_helix.errors import DoubleBackwardError, GradcheckError, GraphError

rng = np.random.default_rng(7)


def leaf(*shape, dtype=np.float64, shift=0.0):
    return th.Tensor((rng.standard_normal(shape) + shift).astype(dtype), requires_grad=True)


# --- gradcheck


class Cube(Op):
    """y = x³, right; the faulty ones below inherit from it."""

    saves = {"x": Input(0)}

    @staticmethod
    def forward(xp, x, *, needs):
        return x * x * x, {"x": x}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        x = saved["x"]
        return (dy * 3 * x * x,)


class WrongFactor(Cube):
    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        x = saved["x"]
        return (dy * 3.001 * x * x,)


class WrongElement(Cube):
    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        dx = dy * 3 * saved["x"] ** 2
        dx[1, 2] *= 2
        return (dx,)


class HiddenSecond(Cube):
    """The first derivative is right; the second takes x for a constant."""

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        x = saved["x"]
        x = x.detach() if isinstance(x, th.Tensor) else x
        return (dy * 3 * x * x,)


class NotANumber(Cube):
    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (dy * np.nan,)


@pytest.mark.parametrize("jacobian", [None, True, False])
@pytest.mark.parametrize("order", [1, 2])
def test_right_gradients_pass(jacobian, order):
    assert th.gradcheck(
        lambda x: th.apply(Cube, x), leaf(2, 3), order=order, jacobian=jacobian
    )


@pytest.mark.parametrize("jacobian", [True, False])
@pytest.mark.parametrize("op", [WrongFactor, WrongElement, NotANumber])
def test_wrong_gradients_are_found(op, jacobian):
    with pytest.raises(GradcheckError, match="input 0"):
        th.gradcheck(lambda x: th.apply(op, x), leaf(2, 3), jacobian=jacobian)


def test_the_message_names_the_element_and_both_values():
    x = th.Tensor(np.full((2, 3), 2.0), requires_grad=True)
    with pytest.raises(
        GradcheckError,
        match=r"d output 0\[1, 2\] / d input 0\[1, 2\] is 24 by the tape and 1[12][.\d]* "
        r"by central differences \(eps 1e-06\): apart by 12, tolerance",
    ):
        th.gradcheck(lambda x: th.apply(WrongElement, x), x)


def test_a_scalar_and_the_second_input_and_output_are_named():
    a, b = leaf(2), th.Tensor(np.array(1.5), requires_grad=True)

    def fn(a, b):
        return a * b, th.apply(WrongFactor, b)

    with pytest.raises(GradcheckError, match="d output 1 / d input 1 is"):
        th.gradcheck(fn, (a, b))


def test_second_order_finds_what_the_first_cannot_see():
    x = leaf(2, 2)
    assert th.gradcheck(lambda x: th.apply(HiddenSecond, x), x)
    for jacobian in (True, False):
        with pytest.raises(GradcheckError, match="input 0"):
            th.gradcheck(lambda x: th.apply(HiddenSecond, x), x, order=2, jacobian=jacobian)


def test_second_order_covers_the_cotangent():
    class ConstantCotangent(Cube):  # dx is right, its derivative for dy is lost
        @staticmethod
        def vjp(dy, saved, *, needs, inputs):
            x = saved["x"]
            flat = dy.detach() if isinstance(dy, th.Tensor) else dy
            return (flat * 3 * x * x,)

    with pytest.raises(GradcheckError, match="cotangent 0"):
        th.gradcheck(lambda x: th.apply(ConstantCotangent, x), leaf(3), order=2)


def test_an_output_that_was_severed_is_found():
    with pytest.raises(GradcheckError, match="is 0 by the tape"):
        th.gradcheck(lambda x: (x * 2, (x * 3).detach()), leaf(2))


def test_several_outputs_and_unused_inputs():
    assert th.gradcheck(
        lambda a, b, h: th.gated_scan(a, b, h),
        (leaf(2, 4, 3), leaf(2, 4, 3), leaf(2, 3)),
        order=2,
    )
    assert th.gradcheck(lambda x, unused: (x.exp(), x.argmax(), x * x), (leaf(3), leaf(2)))


def test_what_requires_no_gradient_is_passed_on():
    constant, index, seen = th.Tensor(rng.standard_normal(3)), np.array([0, 0, 2]), []

    def fn(x, c, i, scale, none):
        seen.append((type(c), i is index, scale, none))
        return x[i] * c * scale

    assert th.gradcheck(fn, (leaf(3), constant, index, 2, None))
    assert set(seen) == {(th.Tensor, True, 2, None)}


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_shorter_floats_are_checked_in_float64(dtype):
    # In float32 a step of 1e-6 drowns; the check would fail by orders of magnitude.
    seen = []

    def fn(a, b):
        seen.append((a.dtype, b.dtype))
        return (a @ b).tanh()

    a, b = leaf(3, 2, dtype=dtype), th.Tensor(np.ones((2, 2), dtype))
    assert th.gradcheck(fn, (a, b), order=2)
    assert set(seen) == {(np.dtype(np.float64), np.dtype(np.float64))}
    assert a.dtype == dtype and a.grad is None


def test_the_callers_arrays_are_not_touched():
    data = rng.standard_normal((3, 2))
    before = data.copy()
    x = th.Tensor(data, requires_grad=True)
    data.flags.writeable = False
    th.gradcheck(lambda x: x.exp(), x, order=2)
    with pytest.raises(GradcheckError):
        th.gradcheck(lambda x: th.apply(WrongFactor, x), x)
    assert np.array_equal(data, before) and x.grad is None and x.version == 0


def test_what_is_no_function_is_refused():
    noise = np.random.default_rng(0)
    with pytest.raises(GraphError, match="a second call with the same inputs"):
        th.gradcheck(lambda x: x * float(noise.standard_normal()), leaf(2))
    with pytest.raises(GraphError, match="a second call with the same inputs"):
        th.gradcheck(lambda x: x * 2 if th.is_grad_enabled() else x, leaf(2))


def test_nothing_to_check_is_an_error():
    with pytest.raises(GraphError, match="no input that requires"):
        th.gradcheck(lambda x: x * 2, th.ones(2))
    with pytest.raises(GraphError, match="none of the 1 float"):
        th.gradcheck(lambda x: x.detach() * 2, leaf(2))
    with pytest.raises(GraphError, match="none of the 0 float"):
        th.gradcheck(lambda x: x.argmax(), leaf(2))
    with pytest.raises(GraphError, match="order=3"):
        th.gradcheck(lambda x: x, leaf(2), order=3)


def test_no_second_derivative_is_an_error_of_its_own():
    class Kept(Op):
        saves = {"twice": Intermediate()}

        @staticmethod
        def forward(xp, x, *, needs):
            return (2 * x) ** 2, {"twice": 2 * x}

        @staticmethod
        def vjp(dy, saved, *, needs, inputs):
            return (dy * 4 * saved["twice"],)

    assert th.gradcheck(lambda x: th.apply(Kept, x), leaf(2))
    with pytest.raises(DoubleBackwardError):
        th.gradcheck(lambda x: th.apply(Kept, x), leaf(2), order=2)


def test_kinks_are_the_callers_to_avoid():
    x = th.Tensor(np.array([0.0, 1.0]), requires_grad=True)
    with pytest.raises(GradcheckError, match="at a kink"):
        th.gradcheck(lambda x: th.where(x > 0, x, 0.0), x)  # slopes 0 and 1 at 0
    assert th.gradcheck(lambda x: th.where(x > 0, x, 0.0), leaf(2))


def test_zero_sizes_and_the_generator():
    assert th.gradcheck(lambda x: x.exp(), leaf(0, 3), order=2)
    draws = []
    for seed in (1, 1, 2):
        gen = np.random.default_rng(seed)
        th.gradcheck(lambda x: x.exp(), leaf(3), jacobian=False, generator=gen)
        draws.append(gen.standard_normal())
    assert draws[0] == draws[1] != draws[2]


def test_broadcast_inputs_move_one_element_at_a_time():
    """O70: https://github.com/pytorch/pytorch/issues/38586"""
    matrix = rng.standard_normal((3, 2))
    for base in (np.ones(1), np.ones(1, np.float32)):
        v = th.Tensor(np.broadcast_to(base, (2,)), requires_grad=True)
        for jacobian in (True, False):
            assert th.gradcheck(
                lambda v: (th.Tensor(matrix) @ v).sum(), (v,), jacobian=jacobian
            )
    v = th.Tensor(np.broadcast_to(np.ones(1), (2,)), requires_grad=True)
    (th.Tensor(matrix) @ v).sum().backward()
    assert np.allclose(v.grad.numpy(), matrix.sum(0), rtol=1e-15)


# --- audit: right ops


class Product(Op):
    """y = a·b, keeping what it must; the faulty ones below inherit from it."""

    saves = {"a": Input(0), "b": Input(1)}

    @staticmethod
    def forward(xp, a, b, *, needs):
        return a * b, {"a": a if needs[1] else None, "b": b if needs[0] else None}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return dy * saved["b"] if needs[0] else None, dy * saved["a"] if needs[1] else None

    @staticmethod
    def predict(inputs, needs):
        (shape, dtype), _ = inputs
        nbytes = int(np.prod(shape)) * dtype.itemsize
        return {"a": nbytes if needs[1] else 0, "b": nbytes if needs[0] else 0}


def findings(op, *inputs, **attrs):
    report = th.audit(op, *(inputs or (leaf(4, 6), leaf(4, 6))), **attrs)
    assert report.ok == (not report.findings)
    return [(f.op, f.label, f.what) for f in report.findings], report


def test_a_right_op_has_no_findings():
    found, report = findings(Product)
    assert found == [] and report.ok
    assert repr(report) == "audit of product: no findings"


def test_all_nodes_of_a_function_are_audited():
    def fn(x, w, scale=1.0):
        return (th.rms_norm(x) @ w).silu().max(axis=0) * scale, x.exp()

    report = th.audit(fn, leaf(6, 4), leaf(4, 4), scale=2.0)
    assert report.ok, report
    assert set(report.ops) == {"rms", "matmul", "silu", "max", "mul", "exp"}


def test_functions_are_put_back_as_they_were():
    from tinygrad_helix.ops.choice import Maximum, Minimum

    before = Maximum.__dict__["forward"]
    assert th.audit(lambda a, b: th.maximum(a, b) + th.minimum(a, b), leaf(4), leaf(4)).ok
    assert Maximum.__dict__["forward"] is before and "forward" not in Minimum.__dict__
    assert th.minimum(th.ones(1), th.zeros(1)).item() == 0

    def fails(x):
        y = x.exp()
        if not fails.first:
            raise KeyError("second call")
        fails.first = False
        return y

    fails.first = True
    before = th.ops.elementwise.Exp.__dict__["forward"]
    with pytest.raises(KeyError):
        th.audit(fails, leaf(2))
    assert th.ops.elementwise.Exp.__dict__["forward"] is before


def test_the_callers_tensors_are_left_alone():
    x = leaf(3, 4)
    before = x.data.copy()
    with th.no_grad():  # as anywhere: the audit records what it needs
        assert th.audit(lambda x: x.exp() * x, x).ok is True
    assert np.array_equal(x.data, before) and x.grad is None


def test_nothing_to_audit_is_an_error():
    with pytest.raises(GraphError, match="nothing that the tape records"):
        th.audit(Product, th.ones(2), th.ones(2))
    with pytest.raises(GraphError, match="nothing that the tape records"):
        th.audit(lambda x: x.argmax(), leaf(2))


# --- audit: planted faults


class OverSaved(Product):
    @staticmethod
    def forward(xp, a, b, *, needs):
        return a * b, {"a": a, "b": b}


def test_over_saved():
    found, report = findings(OverSaved)
    # With both gradients wanted both are read; with one alone the other is not.
    what = "saved and not read: all of it, when only the gradient of a is wanted"
    assert ("over_saved", "a", what) in found
    what = "saved and not read: all of it, when only the gradient of b is wanted"
    assert ("over_saved", "b", what) in found
    assert {f.nbytes for f in report.findings if "not read" in f.what} == {4 * 6 * 8}
    assert {re.match(r"(.*?):\d+ ", f.place)[1] for f in report.findings} == {__file__}
    assert all(f"(class OverSaved at {__file__}:" in f.place for f in report.findings)
    assert "saved and not read" in repr(report) and "192 bytes" in repr(report)


class OverSavedHalf(Op):
    """Keeps [x | x²] in one buffer and reads one side of it."""

    saves = {"wide": Intermediate()}

    @staticmethod
    def forward(xp, x, *, needs):
        wide = xp.concatenate([x, x * x], axis=-1) if needs[0] else None
        return x * x, {"wide": wide}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (2 * dy * saved["wide"][..., : dy.shape[-1]],)


@pytest.mark.parametrize("shape", [(4, 6), (6,)])
def test_over_saved_by_half(shape):
    found, report = findings(OverSavedHalf, leaf(*shape))
    assert [what for _, label, what in found if label == "wide"] == [
        f"saved and not read: the second half of axis {len(shape) - 1}"
    ]
    assert report.findings[0].nbytes == int(np.prod(shape)) * 8


class OverSavedInts(Op):
    """Keeps the mask that it reads, and two more that it does not."""

    saves = {"mask": Constant(), "order": Constant(), "spare": Constant()}

    @staticmethod
    def forward(xp, x, *, needs):
        mask = x > 0
        order = xp.argsort(x.reshape(-1))
        return xp.where(mask, x, 0), (
            {"mask": mask, "order": order, "spare": ~mask} if needs[0] else {}
        )

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (dy * saved["mask"],)


def test_over_saved_ints_and_bools():
    found, _ = findings(OverSavedInts, leaf(4, 6))
    assert found == [
        ("over_saved_ints", "order", "saved and not read: all of it"),
        ("over_saved_ints", "spare", "saved and not read: all of it"),
    ]


class Gather(Op):
    """A permutation and a table of signs: integers that are read."""

    saves = {"index": Constant(), "sign": Constant()}

    @staticmethod
    def forward(xp, x, *, needs):
        index = xp.argsort(x)
        sign = xp.sign(x).astype(np.int8)
        return x[index] * sign, {"index": index, "sign": sign} if needs[0] else {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        dx = np.zeros_like(dy)
        dx[saved["index"]] = dy * saved["sign"]
        return (dx,)


@pytest.mark.parametrize("values", [[3.0, 1.0, 2.0, 4.0], [-3.0, 1.0, -2.0, 4.0], [2.0]])
def test_integers_that_are_read_pass(values):
    # All signs equal, an index that is the identity: a permutation alone would not show.
    x = th.Tensor(np.array(values), requires_grad=True)
    report = th.audit(Gather, x)
    assert [f for f in report.findings if f.label == "sign"] == []
    if len(values) > 1:
        assert report.ok, report


class HiddenCopy(Product):
    """Declares nothing of the copies that it keeps."""

    kept: list = []
    saves = {}

    @classmethod
    def forward(cls, xp, a, b, *, needs):
        if any(needs):
            cls.kept[:] = [a.copy(), b.copy()]
        return a * b, {}

    @classmethod
    def vjp(cls, dy, saved, *, needs, inputs):
        a, b = cls.kept
        return dy * b, dy * a


def test_under_declared():
    HiddenCopy.kept[:] = [np.ones(100)]  # an earlier call must not offset this one's
    found, report = findings(HiddenCopy)
    assert ("hidden_copy", "", "kept outside the tape") in found
    kept = [f.nbytes for f in report.findings if f.what == "kept outside the tape"]
    assert kept == [2 * 4 * 6 * 8]
    tracemalloc.start()  # nor may what is traced already count
    try:
        th.apply(HiddenCopy, leaf(4, 6), leaf(4, 6))
        again = th.audit(HiddenCopy, leaf(4, 6), leaf(4, 6))
    finally:
        tracemalloc.stop()
    assert again.findings[0].what == "kept outside the tape"
    assert again.findings[0].nbytes == 2 * 4 * 6 * 8
    # `predict` still states what Product keeps.
    assert any("predicted otherwise" in what for _, _, what in found)
    assert not any("no_grad" in what for _, _, what in found)


class HiddenInputs(Product):
    """Holds on to its very inputs: no new bytes, and yet they cannot be freed."""

    kept: list = []

    @classmethod
    def forward(cls, xp, a, b, *, needs):
        cls.kept[:] = [a, b]
        return Product.forward(xp, a, b, needs=needs)


class HiddenInATuple(Product):
    """Saves a tuple, of which the tape counts nothing."""

    saves = {"pair": Intermediate()}
    predict = None

    @staticmethod
    def forward(xp, a, b, *, needs):
        return a * b, {"pair": (a.copy(), b.copy()) if any(needs) else None}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        a, b = saved["pair"]
        return dy * b, dy * a


def test_hidden_inputs_and_containers():
    found, report = findings(HiddenInputs)
    assert ("hidden_inputs", "", "saved under no_grad") in found
    HiddenInputs.kept.clear()
    found, report = findings(HiddenInATuple)
    assert found == [("hidden_in_a_tuple", "", "kept outside the tape")]
    assert report.findings[0].nbytes == 2 * 4 * 6 * 8


class WideView(Product):
    saves = {"b": Intermediate(), "a": Input(0)}

    @staticmethod
    def forward(xp, a, b, *, needs):
        wide = xp.concatenate([b, b])
        return a * b, {
            "a": a if needs[1] else None,
            "b": wide[: len(b)] if needs[0] else None,
        }


def test_a_view_that_keeps_more_alive():
    found, report = findings(WideView)
    assert ("wide_view", "b", "a view of 192 bytes of a larger buffer") in found
    assert ("wide_view", "b", "predicted otherwise: 192 bytes") in found
    assert {f.nbytes for f in report.findings} == {384}


class WritesSaved(Product):
    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        a, b = saved["a"], saved["b"]
        if b is not None:
            b *= dy
        return b, None if a is None else dy * a


class WritesCotangent(Product):
    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        db = dy * saved["a"] if needs[1] else None
        if needs[0]:
            dy *= saved["b"]
        return dy if needs[0] else None, db


class KeepsState(Product):
    calls = 0

    @classmethod
    def vjp(cls, dy, saved, *, needs, inputs):
        cls.calls += 1
        return Product.vjp(dy * cls.calls, saved, needs=needs, inputs=inputs)


def test_overwritten():
    found, _ = findings(WritesSaved)
    assert ("writes_saved", "b", "written by the vjp") in found
    assert ("writes_saved", "", "other bits in a second sweep") in found
    found, _ = findings(WritesCotangent)
    assert ("writes_cotangent", "cotangent 0", "written by the vjp") in found
    found, _ = findings(KeepsState)
    assert found == [("keeps_state", "", "other bits in a second sweep")]


class WritesOutput(Op):
    saves = {"y": Output()}

    @staticmethod
    def forward(xp, x, *, needs):
        y = xp.exp(x)
        return y, {"y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        y = saved["y"]
        y *= dy
        return (y,)


def test_overwritten_output_is_named_once():
    found, _ = findings(WritesOutput, leaf(3))
    assert [f for f in found if "written" in f[2]] == [
        ("writes_output", "y", "written by the vjp")
    ]


class IgnoresNeeds(Product):
    saves = {"a": Input(0), "b": Input(1), "mask": Constant()}

    @staticmethod
    def forward(xp, a, b, *, needs):
        return a * b, Product.forward(xp, a, b, needs=needs)[1] | {"mask": a > 0}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        dy = dy * saved["mask"]
        return Product.vjp(dy, saved, needs=needs, inputs=inputs)


class Stash(Product):
    kept = None

    @classmethod
    def forward(cls, xp, a, b, *, needs):
        cls.kept = a + b
        return Product.forward(xp, a, b, needs=needs)


def test_saved_under_no_grad():
    found, report = findings(IgnoresNeeds)
    assert ("ignores_needs", "mask", "saved under no_grad") in found
    assert [f.nbytes for f in report.findings if "no_grad" in f.what] == [24]
    Stash.kept = np.ones((4, 6))
    found, report = findings(Stash)
    assert ("stash", "", "saved under no_grad") in found
    assert {f.nbytes for f in report.findings} == {192}
    Stash.kept = None


class WrongPredict(Product):
    @staticmethod
    def predict(inputs, needs):
        return {"a": 1, "b": 192 if needs[0] else 0}


class WrongShape(Product):
    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return dy.sum(axis=0), dy


class Undeclared(Product):
    saves = {"a": Input(0)}


@pytest.mark.parametrize(
    ("op", "label", "what", "text"),
    [
        (WrongPredict, "a", "predicted otherwise: 1 bytes", "Mend `predict`"),
        (WrongShape, "", "breaks the contract", "wrong_shape"),
        (Undeclared, "", "breaks the contract", "does not declare"),
    ],
)
def test_predict_and_contract(op, label, what, text):
    found, report = findings(op)
    assert (op.name, label, what) in found
    assert text in repr(report)


def test_parameters_are_aside_in_predict():
    class Scale(Product):
        @staticmethod
        def predict(inputs, needs):
            return {"a": 192 if needs[1] else 0}

    a, gain = leaf(4, 6), leaf(4, 6)
    assert not th.audit(Scale, a, gain).ok
    th.memory.mark_parameter(gain.data)
    assert th.audit(Scale, a, gain).ok


class OverSavedOfThree(Op):
    """Reads c for the gradient of b alone, and keeps it always."""

    saves = {"c": Input(2)}

    @staticmethod
    def forward(xp, a, b, c, *, needs):
        return a + b * c, {"c": c}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return dy, dy * saved["c"] if needs[1] else None, None


def test_over_saved_names_the_gradients_that_were_wanted():
    found, _ = findings(OverSavedOfThree, leaf(4), leaf(4), th.ones(4))
    what = "saved and not read: all of it, when only the gradient of a is wanted"
    assert found == [("over_saved_of_three", "c", what)]

    class Never(Product):
        """It reads nothing that it keeps."""

        @staticmethod
        def vjp(dy, saved, *, needs, inputs):
            return dy, dy

    found, _ = findings(Never)
    assert [f for f in found if "not read" in f[2]] == [
        ("never", "a", "saved and not read: all of it"),
        ("never", "b", "saved and not read: all of it"),
    ]


@pytest.mark.parametrize("write", ["__iadd__", "__imul__", "fill"])
def test_an_input_that_forward_writes_to(write):
    class Writes(Op):
        """forward changes b, or writes the ones there again."""

        @staticmethod
        def forward(xp, a, b, *, needs):
            getattr(b, write)(1)
            return a + b, {}

        @staticmethod
        def vjp(dy, saved, *, needs, inputs):
            return dy, dy

    ones = [th.ones(4, 6, requires_grad=True) for _ in range(2)]
    found, report = findings(Writes, *ones)
    assert found == [("writes", "b", "written by forward")]
    assert report.findings[0].nbytes == 4 * 6 * 4
    found, _ = findings(lambda a, b: th.apply(Writes, a, b), *ones)
    assert found == [("writes", "b", "written by forward")]


class TooFew(Product):
    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (dy * saved["b"] if needs[0] else dy,)


def test_a_vjp_of_another_length_is_one_finding():
    for op in (TooFew, lambda a, b: th.apply(TooFew, a, b)):
        found, report = findings(op)
        assert found == [("too_few", "", "breaks the contract")]
        assert "calls.py" not in repr(report) and "audit.py" not in repr(report)
        assert __file__ in report.findings[0].fix


def test_findings_that_differ_in_bytes_are_one():
    class Off(Product):
        """Its `predict` is wrong by another number for each shape."""

        @staticmethod
        def predict(inputs, needs):
            rows = inputs[0][0][0]
            return {"a": rows, "b": rows}

    def twice(a, b):
        return th.apply(Off, a, b).sum() + th.apply(Off, a[:2], b[:2]).sum()

    found, _ = findings(twice)
    assert [f[:2] for f in found if f[0] == "off"] == [("off", "a"), ("off", "b")]
