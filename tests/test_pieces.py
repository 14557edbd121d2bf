"""Arrays that are worked on in pieces: as right as small ones, in any layout."""

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix.ops.operands import PIECE, pieces, rows

SHAPES = [
    (PIECE,),
    (PIECE + 1,),
    (3, PIECE - 1),
    (7, 129, 301),
    (1, PIECE, 3),
    (PIECE * 2, 2),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cut", [pieces, rows])
def test_every_element_is_in_one_piece(cut, shape):
    a, b = np.zeros(shape, np.int8), np.zeros(shape)
    parts = list(cut(a, b))
    for a_, b_ in parts:
        assert a_.shape == b_.shape
        if cut is rows:
            assert a_.shape[-1] == shape[-1]
        a_ += 1
    assert (a == 1).all()
    assert max(a_.size for a_, _ in parts) <= max(PIECE, shape[-1])


@pytest.mark.parametrize("layout", ["plain", "transposed", "strided", "repeated", "0-d"])
@pytest.mark.parametrize("name", ["sigmoid", "silu", "rms_norm"])
def test_large_arrays(name, layout):
    rng = np.random.default_rng(0)
    base = rng.standard_normal((70, 60, 50))
    array = {
        "plain": base,
        "transposed": base.transpose(2, 0, 1),
        "strided": rng.standard_normal((70, 120, 50))[::-1, ::2],
        "repeated": np.broadcast_to(rng.standard_normal((60, 50)), (70, 60, 50)),
        "0-d": np.asarray(1.5),
    }[layout]
    if name == "rms_norm" and not array.ndim:
        array = array.reshape(1)
    x = th.Tensor(array, requires_grad=True)
    assert array.ndim < 2 or x.size > PIECE
    sigmoid = 1 / (1 + np.exp(-array))
    if name == "sigmoid":
        want, slope = sigmoid, sigmoid * (1 - sigmoid)
    elif name == "silu":
        want = array * sigmoid
        slope = sigmoid * (1 + array * (1 - sigmoid))
    else:
        r = (np.mean(array**2, axis=-1, keepdims=True) + 1e-5) ** -0.5
        want = array * r
    y = getattr(th, name)(x)
    assert np.abs(y.data - want).max() < 1e-14
    dy = rng.standard_normal(array.shape)
    (got,) = th.grad(y, x, dy)
    if name == "rms_norm":
        along = np.mean(dy * array, axis=-1, keepdims=True)
        assert np.abs(got.data - (dy * r - r**3 * array * along)).max() < 1e-13
    else:
        assert np.abs(got.data - dy * slope).max() < 1e-14
