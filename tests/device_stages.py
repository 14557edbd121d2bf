"""The stages of device_check.py that need no other framework, and the list of all."""

import importlib
import importlib.metadata
import importlib.util
import platform
import re
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import device_facts
import device_peers
import numpy as np
from device_check import ROOT, Lab, OutOfTime, Skip, command_line, one_line
from device_scan import TOLERANCE, error, float_types, forced, on_host, scans

import tinygrad_helix as th
from tinygrad_helix import accounting
from tinygrad_helix.cuda import scan
from tinygrad_helix.nn.helix import predict_saved

# --- machine


def machine(lab: Lab) -> None:
    """Versions and the GPU."""
    lab.row("python, numpy", f"{platform.python_version()}, {np.__version__}")
    lab.row("tinygrad_helix", th.__version__)
    for name in ("cupy", "torch", "triton", "fla", "accelerated_scan", "ml_dtypes"):
        with lab.part(name, fatal=False):
            found = importlib.util.find_spec(name)
            if found is None:
                raise Skip("is not there")
            made_of = importlib.metadata.packages_distributions().get(name, [])
            versions = [f"{d} {importlib.metadata.version(d)}" for d in made_of]
            lab.row(name, ", ".join(dict.fromkeys(versions)) or found.origin)
    if not lab.gpu:
        raise Skip("needs a GPU (the versions were noted)")
    runtime = lab.xp.cuda.runtime
    about = runtime.getDeviceProperties(0)
    lab.row("GPU", about["name"].decode(), multiprocessors=about["multiProcessorCount"])
    lab.row("memory", f"{about['totalGlobalMem'] / 2**30:.1f} GiB")
    lab.row("L2 cache", f"{about['l2CacheSize'] / 2**20:.0f} MiB", None, "60 MiB or less")
    driver = runtime.driverGetVersion()
    lab.row("driver, runtime", f"{driver}, {runtime.runtimeGetVersion()}")


# --- what is right


def _table_of_ops() -> Any:
    """tests/opinfo.py. Without SciPy it lacks references, which nothing here asks for."""
    if importlib.util.find_spec("scipy") is None:
        sys.modules["scipy"] = Absent("scipy")
    return importlib.import_module("opinfo").OPS


class Absent(types.ModuleType):
    """Stands for a module that is only named: any attribute is it, and so is any call."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self


def _compare(lab: Lab, name: str, pairs: Iterator[tuple[Any, Any]], bound: float) -> float:
    """The largest error of pairs (of the device, of the CPU); a row if it is too large."""
    worst = 0.0
    for got, due in pairs:
        if (got is None) != (due is None):
            lab.row(name, "a gradient on one side only", False)
        elif got is not None:
            if got.dtype != due.dtype or got.shape != due.shape:
                seen = f"{got.dtype}{got.shape}, the CPU {due.dtype}{due.shape}"
                lab.row(name, seen, False)
                continue
            got, due = on_host(got), on_host(due)
            if not np.array_equal(np.isfinite(got), np.isfinite(due)):
                lab.row(name, "not finite in other places than the CPU's", False)
            with np.errstate(invalid="ignore"):
                apart = np.where(np.isfinite(due), got - due.astype("f8"), 0)
            most = float(np.abs(np.where(np.isfinite(due), due, 0)).max(initial=0))
            worst = max(worst, float(np.abs(apart).max(initial=0)) / max(1.0, most))
    if not worst <= bound:
        lab.row(name, f"error {worst:.1e}", False, f"{bound:.0e} or less")
    return worst


def parity_ops(lab: Lab) -> None:
    """Every op and its gradients on the device, against NumPy."""
    ops = _table_of_ops()
    from test_conformance import ran

    ops = ops[:: 8 if lab.quick and not lab.gpu else 1]
    for dtype in ("float32", "float64", "float16"):
        worst, count, failed = (0.0, ""), 0, 0
        for info in ops:
            if lab.left < 0:
                raise OutOfTime
            name = f"{info.name} {dtype}"
            count += 1
            try:
                bound = info.half if dtype == "float16" else TOLERANCE[dtype]
                makes = (info.inputs,)
                if dtype == "float32":
                    makes = (info.inputs, *info.edges, *info.broadcasts)
                for make in makes:
                    arrays = info.sample(np.dtype(dtype), make)
                    got, due = ran(info, arrays, "cuda"), ran(info, arrays, "cpu")
                    pairs = zip([*got[0], *got[1]], [*due[0], *due[1]], strict=True)
                    found = _compare(lab, name, pairs, 2 * bound)
                    worst = max(worst, (found, info.name))
            except Exception as problem:
                failed += 1
                lab.row(name, f"{type(problem).__name__}: {one_line(problem)}", False)
        seen = f"{count} of {len(ops)} compared, largest error {worst[0]:.1e} ({worst[1]})"
        lab.row(f"ops in {dtype}", seen, failed == 0 and count == len(ops), "all compared")


def parity_blocks(lab: Lab) -> None:
    """Blocks, layers and losses on the device against NumPy; the scan by both ways."""
    _table_of_ops()
    from test_conformance import on_device

    from tinygrad_helix.samples import blocks, layers

    samples = [*blocks(), *layers()]
    worst, count = (0.0, ""), 0
    for sample in samples[:: 4 if lab.quick else 1]:
        with lab.part(sample.name):
            got, due = on_device(sample.to("cuda")), on_device(sample)
            pairs = zip([*got[0], *got[1]], [*due[0], *due[1]], strict=True)
            worst = max(worst, (_compare(lab, sample.name, pairs, 1e-12), sample.name))
            count += 1
    lab.row(
        "blocks and layers", f"{count} compared, largest error {worst[0]:.1e}", count > 0
    )
    for dtype in float_types()[:: 2 if lab.quick and not lab.gpu else 1]:
        for way in "RC":
            with lab.part(f"scan {way} {dtype.name}"):
                _scan_parity(lab, way, dtype)


def _scan_parity(lab: Lab, way: str, dtype: np.dtype) -> None:
    worst = 0.0
    for B, T, D in ((2, 129, 33), (3, 257, 6), (1, 1, 130)):
        rng = np.random.default_rng(T)
        a, b = rng.uniform(-0.2, 1, (B, T, D)), rng.standard_normal((B, T, D))
        a[rng.random(a.shape) < 0.05] = 0
        given = [v.astype(dtype) for v in (a, b, rng.standard_normal((B, D)))]
        dh = rng.standard_normal((B, T, D)).astype(dtype)
        mask = rng.random((B, T)) < 0.1
        # Without Tensors, which hold no bfloat16.
        xs = [lab.xp.asarray(v) for v in (*given, mask, dh)]
        with forced(way):
            (h, last), _ = scan.CudaGatedScan.forward(lab.xp, *xs[:4], needs=(True,) * 4)
            found, _ = scan.CudaGatedScanGrad.forward(
                lab.xp,
                *(xs[4], lab.xp.zeros((B, D), dtype), xs[0], h, *xs[2:4]),
                needs=(False,) * 6,
                wants=(True, True),
            )
        leaves = [th.Tensor(v.astype("f8"), requires_grad=True) for v in given]
        h8, last8 = th.gated_scan(leaves[0], leaves[1], leaves[2], th.Tensor(mask))
        found8 = th.grad([h8], leaves, [dh.astype("f8")], retain_graph=True)
        due = [t.data for t in (h8, last8, *found8) if t is not None]
        pairs = zip((h, last, *found), due, strict=True)
        worst = max(worst, *(error(on_host(g), d) for g, d in pairs))
    bound = TOLERANCE[dtype.name]
    name = f"scan {way} {dtype.name}: h, last and all gradients"
    lab.row(name, f"error {worst:.1e}", worst <= bound, f"{bound:.0e} or less")


def tests(lab: Lab) -> None:
    """The tests that are marked `cuda`: golden files, copies, errors, memory."""
    if not lab.gpu:
        raise Skip("needs a GPU")
    paths = sorted(ROOT.glob("tests/test_*.py"))
    files = [str(p) for p in paths if "mark.cuda" in p.read_text(encoding="utf-8")]
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "--maxfail=10"]
    ended = command_line([*command, "-W", "default", *files], lab.left - 2)
    said = ended.stdout.strip().splitlines()
    lab.row("pytest -m cuda", said[-1] if said else "no word", ended.returncode == 0)
    for line in said:
        if line.startswith(("FAILED", "ERROR")):
            lab.row("pytest", line, False)


# --- bytes


def saved_and_peak(lab: Lab) -> None:
    """What the block keeps, predicted, counted and measured; what a sweep takes beyond."""
    shape = (8, 512, 512) if lab.gpu and not lab.quick else (2, 33, 8)
    B, T, D = shape
    forms = [
        ("composed", None),
        *(("fused", p) for p in ("keep9", "keep6", "keep3", "keep1")),
    ]
    for mode, policy in forms:
        name = " ".join(filter(None, (mode, policy)))
        with lab.part(name):
            rng = np.random.default_rng(0)
            block = th.nn.HelixBlock(D, mode=mode, generator=rng, device="cuda")
            weights = dict(block.named_parameters())
            x = th.randn(*shape, generator=rng, device="cuda", requires_grad=True)

            def fn(x: Any, mode: Any = mode, policy: Any = policy, **weights: Any) -> Any:
                return th.helix_block(x, *weights.values(), mode=mode, policy=policy)

            values = {"x": x, **weights}
            accounting.profile(fn, values, parameters=weights)  # workspaces, kernels
            seen = accounting.profile(fn, values, parameters=weights)
            due = sum(predict_saved(mode, policy, shape, "float32").values())
            three = f"{due:,} = {seen.counted:,} = {seen.measured:,}"
            same = due == seen.counted == seen.measured
            lab.row(f"{name}: predicted = counted = measured", three, same, "equal")
            unit = B * T * D * 4
            beyond = f"{seen.transient_bytes / unit:.2f}"
            if policy in ("keep9", "keep6"):
                bound = (4.1 * B * T * D + 2 * B * T + 8 * D * D + 2 * B * D + 2 * D) * 4
                ok, say = seen.transient_bytes <= bound, f"{bound / unit:.2f} or less"
            else:
                ok, say = None, ""
            peak = f"peak {seen.peak_bytes / unit:.2f}, beyond what is kept {beyond}"
            lab.row(f"{name}: activations at the peak", peak, ok, say, peak=seen.peak_bytes)


# --- compute-sanitizer

SANITIZED = """
import sys; sys.path.insert(0, {root!r})
import numpy as np, tinygrad_helix as th
rng = np.random.default_rng(0)
for B, T, D in ((2, 257, 33), (3, 129, 6)):
    a, b = (th.Tensor(rng.random((B, T, D)).astype("f4"), device="cuda", requires_grad=True)
            for _ in range(2))
    h, _ = th.gated_scan(a, b)
    h.sum().backward()
    block = th.nn.HelixBlock(D, mode="fused", device="cuda")
    block(th.Tensor(a.data, requires_grad=True)).sum().backward()
assert np.isfinite(a.grad.to("cpu").numpy()).all()
"""


def sanitizer(lab: Lab) -> None:
    """The scan and the fused block under compute-sanitizer's tools."""
    if not lab.gpu:
        raise Skip("needs a GPU")
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(program).exists():
        raise Skip("compute-sanitizer is not installed")
    for tool in ("memcheck", "racecheck", "initcheck"):
        with lab.part(tool, "0 errors"):
            command = [program, "--tool", tool, "--error-exitcode", "9"]
            script = SANITIZED.format(root=str(ROOT))
            ended = command_line([*command, sys.executable, "-c", script], lab.left)
            said = re.findall(r"=+ (?:ERROR|RACECHECK) SUMMARY: .*", ended.stdout)
            seen = said[-1].lstrip("= ") if said else one_line(ended.stdout + ended.stderr)
            known = "not supported" in seen or "Internal" in seen or not said
            lab.row(tool, seen, None if known else ended.returncode == 0, "0 errors")


# --- the list


class Stage(NamedTuple):
    run: Callable[[Lab], None]
    seconds: float  # at most
    about: str


def _stage(run: Callable[[Lab], None], seconds: float) -> Stage:
    return Stage(run, seconds, (run.__doc__ or "").splitlines()[0])


STAGES = {
    "machine": _stage(machine, 12),
    "scan": _stage(scans, 60),
    "blocks": _stage(parity_blocks, 35),
    "facts": _stage(device_facts.facts, 35),
    "bytes": _stage(saved_and_peak, 20),
    "baselines": _stage(device_peers.baselines, 60),
    "fused": _stage(device_peers.fused_block, 75),
    "ops": _stage(parity_ops, 75),
    "tests": _stage(tests, 35),
    "sanitizer": _stage(sanitizer, 30),
}
