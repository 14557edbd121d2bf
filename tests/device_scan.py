"""The scan of device_check.py: ceilings of the GPU, and how near the kernels come."""

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
from device_check import Lab, Skip
from device_clock import CupyClock, HostClock, Timing, TorchClock, cuda_torch

from tinygrad_helix.cuda import scan

# What was predicted before any of it was measured, in microseconds, float32, of the way
# that is chosen: the bytes at 4.3 TB/s, and what a kernel of its kind reaches.
# A backward pass moves 20 bytes where a forward pass moves 12; bfloat16 half of each. Way C
# moves 20 and 28, its rate is counted at 12 and 20 too: they are what there must be.
Shapes = dict[tuple[int, int, int], tuple[str, tuple[float, float] | None]]
SHAPES: Shapes = {
    (64, 512, 1024): ("R", (100, 110)),
    (8, 2048, 2048): ("R", (105, 130)),
    (1, 65536, 256): ("C", (85, 110)),
}
TINY: Shapes = {(4, 130, 6): ("C", None), (3, 20, 5): ("R", None)}
BACKWARD = 1.7  # of the forward pass's time
# Percent of the ceiling, float32, of the way that is chosen.
TARGETS = {("R", "forward"): 85, ("R", "backward"): 80, ("C", "forward"): 55}
BYTES = {"forward": 3, "backward": 5}  # arrays of the scan's size, read and written
TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "float16": 1e-2, "bfloat16": 3e-2}


def clock(lab: Lab) -> Any:
    return CupyClock(lab.xp) if lab.gpu else HostClock()


def on_host(x: Any) -> np.ndarray:
    """An array of the device, at least in float32."""
    array = x.get() if hasattr(x, "get") else np.asarray(x)
    return array.astype("f4") if array.dtype.itemsize == 2 else array


def error(got: np.ndarray, due: np.ndarray) -> float:
    """Largest difference over the largest value."""
    most = float(np.abs(due).max(initial=0)) or 1.0
    apart = np.abs(got.astype("f8") - due.astype("f8")).max(initial=0) / most
    return float(apart)


def float_types() -> list[np.dtype]:
    found: list[Any] = ["float64", "float32", "float16"]
    with contextlib.suppress(ImportError):
        found.append(importlib.import_module("ml_dtypes").bfloat16)
    return [np.dtype(x) for x in found]


@contextlib.contextmanager
def forced(way: str) -> Iterator[None]:
    """The scan goes by way R or C, whatever it would choose."""
    with mock.patch.object(scan, "_ENOUGH", 0 if way == "R" else 2**62):
        yield


def ceilings(lab: Lab, words: int) -> dict[str, float]:
    """GB/s of what a kernel can hope for on arrays of `words` float32, as rows too."""
    xp, found = lab.xp, {}
    a, b, c, x, y = (xp.zeros(words, "float32") for _ in range(5))
    rows: list[tuple[str, int, Callable[[], Timing]]] = []
    if lab.gpu:
        three = xp.ElementwiseKernel(
            "T a, T b, T c", "T x, T y", "x = a * b; y = b + c", "three_in_two_out"
        )
        rows = [
            (
                "device copy",
                2,
                lambda: clock(lab).time(
                    lambda: (x.data.copy_from_device_async(a.data, a.nbytes), [x])[1]
                ),
            ),
            ("three in, two out", 5, lambda: clock(lab).time(lambda: three(a, b, c, x, y))),
        ]
    rows.append(("add", 3, lambda: clock(lab).time(lambda: [xp.add(a, b, out=x)])))
    for name, arrays, time in rows:
        with lab.part(f"ceiling: {name}"):
            _ceiling(lab, found, name, arrays * 4 * words, time())
    with lab.part("ceiling: torch.add(a, b, out=h)", fatal=False):
        if not lab.gpu:
            raise Skip("needs a GPU")
        with cuda_torch() as torch:
            p, q, h = (torch.zeros(words, device="cuda") for _ in range(3))
            timing = TorchClock(torch).time(lambda: [torch.add(p, q, out=h)])
            _ceiling(lab, found, "torch.add", 12 * words, timing)
    found["forward"] = max(found.get("torch.add", 0), found.get("add", 0))
    found["backward"] = found.get("three in, two out", 0)
    return found


def _ceiling(
    lab: Lab, found: dict[str, float], name: str, nbytes: int, timing: Timing
) -> None:
    found[name] = nbytes / timing.us * 1e-3
    seen = (
        f"{timing.us:8.1f} us  {found[name]:6.0f} GB/s  ({nbytes >> 20} MiB, {timing.how})"
    )
    lab.row(f"ceiling: {name}", seen, us=timing.us, gb_s=found[name])


def scan_inputs(lab: Lab, shape: tuple[int, int, int], dtype: Any) -> list[list[Any]]:
    """Two sets of a, b, dh on the device; gates in (0.9, 1)."""
    sets = []
    for seed in (0, 1):
        rng = np.random.default_rng(seed)
        a, b, dh = (rng.random(shape, np.float32) for _ in range(3))
        a = 0.9 + 0.1 * a
        sets.append([lab.xp.asarray((v).astype(dtype)) for v in (a, b - 0.5, dh - 0.5)])
    return sets


def forward(lab: Lab, a: Any, b: Any) -> Any:
    """(h, last), as arrays."""
    return scan.CudaGatedScan.forward(lab.xp, a, b, None, None, needs=(False,) * 4)[0]


def backward(lab: Lab, dh: Any, dlast: Any, a: Any, h: Any) -> Any:
    """(da, db), as arrays."""
    needs, wants = (False,) * 6, (True, False)
    given = (dh, dlast, a, h, None, None)
    return scan.CudaGatedScanGrad.forward(lab.xp, *given, needs=needs, wants=wants)[0][:2]


def exact(a: Any, b: Any, dh: Any) -> tuple[np.ndarray, ...]:
    """h, da, db in float64 of the first sequence's first 64 channels [T, 64]."""
    a, b, dh = (on_host(v[0, :, :64]).astype("f8") for v in (a, b, dh))
    h, da, g = (np.zeros_like(b) for _ in range(3))
    carry: Any = 0.0
    for t in range(len(b)):
        carry = h[t] = a[t] * carry + b[t]
    carry = 0.0
    for t in reversed(range(len(b))):
        g[t] = dh[t] + carry
        carry = a[t] * g[t]
        da[t] = g[t] * h[t - 1] if t else 0
    return h, da, g


def scans(lab: Lab) -> None:
    """The scan's kernels against the ceilings of this GPU and what was predicted."""
    shapes = SHAPES if lab.gpu and not lab.quick else TINY
    for shape, (choice, predicted) in shapes.items():
        words = int(np.prod(shape))
        for dtype in [d for d in float_types() if d.name in ("float32", "bfloat16")]:
            part = dtype.itemsize / 4
            label = f"{shape} {dtype.name}"
            best: dict[str, float] = {}
            with lab.part(label):
                best = ceilings(lab, max(1, int(words * part)))
            sets = scan_inputs(lab, shape, dtype)
            due = exact(*sets[0])
            for way in "RC":
                if way != choice and lab.left < 8:
                    lab.row(f"{way} {label}", "n/a: no time for the way not chosen")
                    continue
                span = None
                if predicted and way == choice:
                    span = [part * us for us in predicted]
                with lab.part(f"{way} {label}"), forced(way):
                    _scan_rows(lab, way, sets, due, best, span)


def _scan_rows(
    lab: Lab,
    way: str,
    sets: list[list[Any]],
    due: tuple[np.ndarray, ...],
    best: dict[str, float],
    predicted: list[float] | None,
) -> None:
    shape, dtype = sets[0][0].shape, sets[0][0].dtype
    kept = [forward(lab, a, b)[0] for a, b, _ in sets]
    dlast = lab.xp.zeros((shape[0], shape[2]), dtype)
    calls = {
        "forward": [lambda s=s: forward(lab, s[0], s[1]) for s in sets],
        "backward": [
            lambda s=s, h=h: backward(lab, s[2], dlast, s[0], h)
            for s, h in zip(sets, kept, strict=True)
        ],
    }
    for direction, both in calls.items():
        timing = clock(lab).time(*both)
        got = [on_host(v[0, :, :64]) for v in timing.outputs if v.ndim == 3]
        wanted = due[:1] if direction == "forward" else due[1:]
        off = max(error(g, d) for g, d in zip(got, wanted, strict=True))
        rate = BYTES[direction] * np.prod(shape) * dtype.itemsize / timing.us * 1e-3
        ceiling = best.get(direction)
        share = 100 * float(rate) / ceiling if ceiling else None
        ok = off <= TOLERANCE[dtype.name]
        say = []
        if predicted:
            factor = 1 if direction == "forward" else BACKWARD
            say.append(f"{predicted[0] * factor:.0f} to {predicted[1] * factor:.0f} us")
            target = TARGETS.get((way, direction)) if dtype.itemsize == 4 else None
            if target is not None:
                say.append(f"{target} % or more")
                ok = ok and share is not None and share >= target
        part = "" if share is None else f"{share:4.0f} % of ceiling  "
        seen = f"{timing.us:8.1f} us  {rate:6.0f} GB/s  {part}error {off:.1e}"
        lab.row(
            f"{way} {direction} {shape} {dtype.name}",
            f"{seen}  ({timing.how})",
            ok,
            ", ".join(say),
            us=timing.us,
            gb_s=float(rate),
            share=share,
            error=off,
            predicted_us=predicted,
        )
