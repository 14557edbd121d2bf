"""The worked examples run, and keep what they say they keep."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tinygrad_helix as th

ROOT = Path(__file__).parent.parent
SWIGLU = ROOT / "tutorials" / "swiglu.py"


@pytest.fixture(scope="module")
def swiglu():
    spec = importlib.util.spec_from_file_location("swiglu", SWIGLU)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_swiglu_runs_by_itself(tmp_path):
    out = subprocess.run(
        [sys.executable, "-W", "error", SWIGLU],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert out.returncode == 0, out.stderr
    assert "composed, 576 numbers a token" in out.stdout
    assert "fused, 320 numbers a token" in out.stdout
    assert "audit of swiglu: no findings" in out.stdout


@pytest.mark.parametrize(
    ("B", "T", "D", "F"), [(2, 3, 4, 5), (4, 64, 64, 128), (1, 1, 7, 3)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_swiglu_bytes_predicted_counted_measured(swiglu, B, T, D, F, dtype):
    item = np.dtype(dtype).itemsize
    for name, width in (("composed", D + 4 * F), ("fused", D + 2 * F)):
        variant = getattr(swiglu, name)
        arguments = swiglu.inputs(B=B, T=T, D=D, F=F, dtype=dtype)
        assert th.saved_bytes(variant(**arguments)) == width * B * T * item
        measured = th.accounting.measure_saved(variant, arguments, swiglu.parameters)
        assert measured == width * B * T * item
    signatures = [(x.shape, x.dtype) for x in arguments.values()]
    predicted = swiglu.SwiGLU.predict(signatures, (True,) * 4)
    assert sum(predicted.values()) == width * B * T * item


def test_swiglu_gradients_for_every_set_of_wanted_ones(swiglu):
    for wanted in range(1, 16):
        arguments = swiglu.inputs(B=2, T=3, D=4, F=5, dtype="float64")
        for i, x in enumerate(arguments.values()):
            x.requires_grad = bool(wanted >> i & 1)
        free = [x for x in arguments.values() if x.requires_grad]
        due = th.grad((swiglu.composed(**arguments) ** 2).sum(), free)
        got = th.grad((swiglu.fused(**arguments) ** 2).sum(), free)
        for g, r in zip(got, due, strict=True):
            np.testing.assert_allclose(g.data, r.data, rtol=1e-12, atol=1e-14)


def test_swiglu_audit(swiglu):
    arguments = swiglu.inputs(B=2, T=3, D=4, F=5, dtype="float64")
    report = th.audit(swiglu.SwiGLU, *arguments.values())
    assert report.ok, report
