"""Results do not depend on the number of BLAS threads, nor does a call change it."""

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import tinygrad_helix as th


def blas_threads():
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def bits(mode, policy, B, T, D):
    rng = np.random.default_rng(0)
    block = th.nn.HelixBlock(D, mode=mode, policy=policy, generator=rng)
    x = th.Tensor(rng.standard_normal((B, T, D)).astype("float32"), requires_grad=True)
    h0 = th.Tensor(rng.standard_normal((B, D)).astype("float32"), requires_grad=True)
    y = block(x, h0=h0)
    wanted = [x, h0, *block.parameters()]
    grads = th.grad(y, wanted, rng.standard_normal(y.shape).astype("float32"))
    return [y.data, *(g.data for g in grads)]


@pytest.mark.parametrize(
    "shape", [(8, 128, 64), (1, 600, 96), (3, 333, 70), (2, 70, 130), (1, 30, 450)]
)
@pytest.mark.parametrize(
    ("mode", "policy"),
    [("fused", "keep9"), ("fused", "keep6"), ("fused", "keep1"), ("composed", None)],
)
def test_bits_under_1_2_and_3_threads(mode, policy, shape):
    before = blas_threads()
    if not before:
        pytest.skip("threadpoolctl finds no BLAS whose threads it can set")
    results = []
    for threads in (1, 2, 3):
        with threadpool_limits(threads, user_api="blas"):
            results.append(bits(mode, policy, *shape))
            assert blas_threads() == [threads] * len(before)
    assert blas_threads() == before
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert (a == b).all()
