"""The comparisons of device_check.py: others' scans, and the fused block against PyTorch.

Each is tried by itself. What is missing, does not take the shape or fails reads n/a: it is
somebody else's, and says nothing of this package.
"""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from device_check import Lab, Skip
from device_clock import Timing, TorchClock, cuda_torch
from device_scan import (
    SHAPES,
    TINY,
    TOLERANCE,
    backward,
    clock,
    error,
    exact,
    float_types,
    forward,
    on_host,
    scan_inputs,
)

import tinygrad_helix as th
from tinygrad_helix import peers


def shared(torch: Any, array: Any) -> Any:
    """A device array as a tensor of PyTorch on the same memory; bfloat16 by its bits."""
    if array.dtype.name == "bfloat16":
        return torch.from_dlpack(array.view("int16")).view(torch.bfloat16)
    return torch.from_dlpack(array)


def compiled(torch: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(fn, dynamic=False)


# --- scans. Each makes, of PyTorch, a function of (a, b) [B, T, D] that returns h.


def hgrn(name: str) -> Callable[[Any], Callable[..., Any]]:
    def make(torch: Any) -> Callable[..., Any]:
        scan = getattr(importlib.import_module("fla.ops.hgrn"), name)
        # It takes logarithms of gates: these are part of its work, for whoever has gates.
        return lambda a, b: scan(x=b, g=a.log())[0]

    return make


def accelerated(turned: bool) -> Callable[[Any], Callable[..., Any]]:
    def make(torch: Any) -> Callable[..., Any]:
        try:
            scan = importlib.import_module("accelerated_scan.scalar").scan
        except ImportError:
            scan = importlib.import_module("accelerated_scan.triton").scan
        if not turned:
            return scan  # on [B, D, T]

        def turning(a: Any, b: Any) -> Any:
            a, b = (v.transpose(1, 2).contiguous() for v in (a, b))
            return scan(a, b).transpose(1, 2).contiguous()

        return turning

    return make


def combine(first: Any, then: Any) -> Any:
    (a1, b1), (a2, b2) = first, then
    return a1 * a2, a2 * b1 + b2


def associative(a: Any, b: Any) -> Any:
    from torch._higher_order_ops.associative_scan import associative_scan

    return associative_scan(combine, (a, b), dim=1, combine_mode="pointwise")[1]


def rounds(a: Any, b: Any) -> Any:
    """log2 T rounds, each a pass over everything; differentiable as it stands."""
    import torch

    by = 1
    while by < b.shape[1]:
        b = torch.cat([b[:, :by], b[:, by:] + a[:, by:] * b[:, :-by]], 1)
        a = torch.cat([a[:, :by], a[:, by:] * a[:, :-by]], 1)
        by *= 2
    return b


def loop(torch: Any) -> Callable[..., Any]:
    scan = peers._torch_scan_function(torch)
    return lambda a, b: scan.apply(a, b, 1)


SCANS: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "fla chunk_hgrn (with log of the gates)": hgrn("chunk_hgrn"),
    "fla fused_recurrent_hgrn (with log)": hgrn("fused_recurrent_hgrn"),
    "accelerated-scan, transposes apart": accelerated(False),
    "accelerated-scan, with transposes": accelerated(True),
    "torch.compile(associative_scan)": lambda torch: compiled(torch, associative),
    "torch, a loop of launches": loop,
}


def baselines(lab: Lab) -> None:
    """The scan of this package beside other libraries', on the same inputs."""
    shapes = [*(SHAPES if lab.gpu and not lab.quick else TINY)]
    dtypes = [d for d in float_types() if d.name in ("float32", "bfloat16")]
    for dtype in dtypes:
        for shape in shapes:
            sets = scan_inputs(lab, shape, dtype)
            due = exact(*sets[0])
            ours: dict[str, float] = {}
            label = f"{shape} {dtype.name}"
            with lab.part(f"tinygrad_helix {label}"):
                ours = _ours(lab, label, sets)
            for name, make in SCANS.items():
                if name.endswith("launches") and shape[1] > 512:
                    continue  # two launches a step
                with lab.part(f"{name} {label}", fatal=False):
                    if not lab.gpu:
                        raise Skip("needs a GPU")
                    with cuda_torch() as torch:
                        turned = name.endswith("apart")
                        _theirs(lab, torch, name, make(torch), sets, due, ours, turned)


def _ours(lab: Lab, label: str, sets: list[list[Any]]) -> dict[str, float]:
    kept = [forward(lab, a, b)[0] for a, b, _ in sets]
    B, _, D = kept[0].shape
    dlast = lab.xp.zeros((B, D), kept[0].dtype)
    times = {
        "forward": clock(lab).time(*(lambda s=s: forward(lab, s[0], s[1]) for s in sets)),
        "backward": clock(lab).time(
            *(
                lambda s=s, h=h: backward(lab, s[2], dlast, s[0], h)
                for s, h in zip(sets, kept, strict=True)
            )
        ),
    }
    us = {direction: timing.us for direction, timing in times.items()}
    seen = f"{us['forward']:9.1f} us forward, {us['backward']:9.1f} us backward"
    lab.row(f"tinygrad_helix {label}", f"{seen}  ({times['forward'].how})", None, **us)
    return us


def _theirs(
    lab: Lab,
    torch: Any,
    name: str,
    scan: Callable[..., Any],
    sets: list[list[Any]],
    due: tuple[Any, ...],
    ours: dict[str, float],
    turned: bool,
) -> None:
    shape, dtype = sets[0][0].shape, sets[0][0].dtype
    leaves = []
    for arrays in sets:
        tensors = [shared(torch, v) for v in arrays]
        if turned:
            tensors = [v.transpose(1, 2).contiguous() for v in tensors]
        leaves.append([v.detach().requires_grad_() for v in tensors])

    def without(a: Any, b: Any) -> Any:
        with torch.no_grad():
            return [scan(a, b)]

    clock = TorchClock(torch)
    label = f"{name} {shape} {dtype.name}"
    timing = clock.time(*(lambda s=s: without(*s[:2]) for s in leaves))
    h = timing.outputs[0].transpose(1, 2) if turned else timing.outputs[0]
    off = error(h[0, :, :64].float().cpu().numpy(), due[0])
    seen = f"{timing.us:9.1f} us forward, {timing.us / ours['forward']:.2f} of ours"
    good = off <= 3 * TOLERANCE[dtype.name]
    lab.row(
        label, f"{seen}, error {off:.1e}  ({timing.how})", None, us=timing.us, right=good
    )
    with lab.part(f"{label}, backward", fatal=False):
        ys = [scan(*s[:2]) for s in leaves]
        timing = clock.time(
            *(
                lambda s=s, y=y: torch.autograd.grad(y, s[:2], s[2], retain_graph=True)
                for s, y in zip(leaves, ys, strict=True)
            ),
            graph=False,
        )
        seen = f"{timing.us:9.1f} us, {timing.us / ours['backward']:.2f} of ours"
        lab.row(f"{label}, backward", f"{seen}  ({timing.how})", None, us=timing.us)


# --- the block


def block(torch: Any, scan: Callable[..., Any]) -> Callable[..., Any]:
    """The HELIX block in PyTorch's own ops."""
    F = torch.nn.functional

    def forward(x: Any, wa: Any, wb: Any, wo: Any, wf1: Any, wf2: Any, *gains: Any) -> Any:
        g1, g2, g3, g4 = gains
        D = x.shape[-1]
        xn = F.rms_norm(x, (D,), g1, 1e-5)
        h = scan(torch.sigmoid(xn @ wa[:-1] + wa[-1]), xn @ wb)
        out1 = x + F.silu(h * g2) @ wo
        return out1 + F.silu(F.rms_norm(out1, (D,), g3, 1e-5) @ wf1) @ wf2 * g4

    return forward


def fused_block(lab: Lab) -> None:
    """Forward and all gradients of the fused block, beside PyTorch eager and compiled."""
    shapes = [(8, 512, 512), (8, 2048, 1024)] if lab.gpu and not lab.quick else [(2, 16, 8)]
    for shape in shapes:
        best: dict[str, float] = {}
        rng = np.random.default_rng(0)
        made = th.nn.HelixBlock(shape[2], generator=rng)
        arrays = [
            rng.standard_normal(shape).astype("f4"),
            *(
                p.data + 0.1 * rng.standard_normal(p.shape).astype("f4")
                for p in made.parameters()
            ),
        ]
        dy = rng.standard_normal(shape).astype("f4")
        due: list[np.ndarray] = []
        for mode, policy in (("composed", None), ("fused", "keep6"), ("fused", "keep1")):
            name = " ".join(filter(None, ("tinygrad_helix", mode, policy)))
            with lab.part(f"{name} {shape}"):
                timing = _our_block(lab, arrays, dy, mode, policy)
                got = [on_host(v) for v in timing.outputs]
                due = due or got
                off = max(error(g, d) for g, d in zip(got, due, strict=True))
                if policy == "keep6":
                    best["ours"] = timing.us
                seen = f"{timing.us:9.1f} us, apart by {off:.1e}  ({timing.how})"
                lab.row(f"{name} {shape}", seen, off < 1e-4, us=timing.us)
        if not lab.gpu:
            lab.row(f"PyTorch {shape}", "n/a: needs a GPU")
            continue
        with lab.part(f"PyTorch {shape}", fatal=False), cuda_torch() as torch:
            _their_blocks(lab, torch, shape, arrays, dy, due, best)
        ours, theirs = best.get("ours"), best.get("compiled")
        if ours and theirs:
            name = f"fused, keep6, over the best torch.compile {shape}"
            lab.row(name, f"{ours / theirs:.2f}", ours < theirs, "below 1")


def _our_block(lab: Lab, arrays: list[Any], dy: Any, mode: str, policy: Any) -> Timing:
    sets = []
    for turn in (0, 1):
        x, *weights = (
            th.Tensor(v if turn == 0 else v.copy(), device="cuda", requires_grad=True)
            for v in arrays
        )
        sets.append([x, *weights])
    cotangent = th.Tensor(dy, device="cuda")

    def step(leaves: list[Any]) -> list[Any]:
        y = th.helix_block(*leaves, mode=mode, policy=policy)
        found = th.grad(y, leaves, cotangent)
        return [y.data, *(g.data for g in found if g is not None)]

    return clock(lab).time(*(lambda s=s: step(s) for s in sets))


def _their_blocks(
    lab: Lab,
    torch: Any,
    shape: tuple[int, ...],
    arrays: list[Any],
    dy: Any,
    due: list[np.ndarray],
    best: dict[str, float],
) -> None:
    sets = [[torch.tensor(v, device="cuda").requires_grad_() for v in arrays] for _ in "12"]
    cotangent = torch.tensor(dy, device="cuda")

    def step(run: Callable[..., Any], leaves: list[Any]) -> list[Any]:
        y = run(*leaves)
        return [y, *torch.autograd.grad(y, leaves, cotangent)]

    # Compiling is lazy: what it raises is raised in the part below.
    forms: dict[str, Callable[[], Callable[..., Any]]] = {
        "torch eager, scan in rounds": lambda: block(torch, rounds),
        "torch.compile, scan in rounds": lambda: compiled(torch, block(torch, rounds)),
        "torch.compile, associative_scan": lambda: compiled(
            torch, block(torch, associative)
        ),
        "torch eager, a loop of launches": lambda: block(torch, loop(torch)),
    }
    for name, make in forms.items():
        run = make()
        for graph in (False, True):
            label = f"{name} {shape}" + (", as a graph" if graph else "")
            with lab.part(label, fatal=False):
                if name.endswith("launches") and shape[1] > 512:
                    raise Skip("thousands of launches")
                calls = [lambda s=s, run=run: step(run, s) for s in sets]
                timing = TorchClock(torch).time(*calls, graph=graph)
                got = [v.float().cpu().numpy() for v in timing.outputs]
                off = max(error(g, d) for g, d in zip(got, due, strict=True))
                seen = f"{timing.us:9.1f} us, apart by {off:.1e}  ({timing.how})"
                lab.row(label, seen, None, us=timing.us)
                if "compile" in name and off < 1e-3:
                    best["compiled"] = min(timing.us, best.get("compiled", timing.us))
