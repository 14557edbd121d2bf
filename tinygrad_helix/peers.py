"""What `bench --peers` times beside the package: the same in PyTorch, JAX and MyGrad.

Each in the fastest form that was found for it on a CPU (PyTorch's of its eager ones). A
function imports its library when it is called, and returns a step: it takes nothing, and
returns what is to be equal.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = [
    "PEERS", "installed", "jax_helix", "mygrad_chain", "torch_chain", "torch_helix",
    "torch_language_model", "torch_scan",
]  # fmt: skip

PEERS = ("torch", "jax", "mygrad")
Step = Callable[[], Any]


def installed() -> dict[str, str]:
    """The version of each peer that can be imported."""
    found = {}
    for name in PEERS:
        try:
            found[name] = str(importlib.import_module(name).__version__)
        except Exception:  # not there, or broken: in any way that an import can be
            continue
    return found


# --- PyTorch


def _torch_scan_function(torch: Any) -> Any:
    """h_t = a_t·h_{t-1} + b_t over `axis`, in place, with the backward pass by hand.

    Its steps by way of unbind: 512 views at once cost less than 512 indexings.
    """

    class Scan(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Any, b: Any, axis: int) -> Any:
            h = torch.empty_like(b)
            gates, inputs, states = a.unbind(axis), b.unbind(axis), h.unbind(axis)
            states[0].copy_(inputs[0])
            for t in range(1, len(states)):
                torch.addcmul(inputs[t], gates[t], states[t - 1], out=states[t])
            ctx.save_for_backward(a, h)
            ctx.axis = axis
            return h

        @staticmethod
        def backward(ctx: Any, *cotangents: Any) -> Any:
            a, h = ctx.saved_tensors
            g = cotangents[0].clone()
            gates, sums = a.unbind(ctx.axis), g.unbind(ctx.axis)
            steps = len(sums)
            for t in reversed(range(steps - 1)):
                sums[t].addcmul_(gates[t + 1], sums[t + 1])
            da = torch.empty_like(a)
            da.select(ctx.axis, 0).zero_()
            later = da.narrow(ctx.axis, 1, steps - 1)
            before = h.narrow(ctx.axis, 0, steps - 1)
            torch.mul(g.narrow(ctx.axis, 1, steps - 1), before, out=later)
            return da, g, None

    return Scan


def _torch_block(torch: Any, time_major: bool = False) -> Callable[..., Any]:
    """The block of PyTorch's own fused ops: rms_norm with its gain, addmm on [N, D].

    In memory [B, T, D]; or, with `time_major`, x is copied to [T, B, D] first, and g4 is
    multiplied into wf2, so that one addmm ends the block. That is 2 to 9 % faster at
    (8, 512, 512) and 3 to 12 % slower at (8, 128, 256): both are timed.
    """
    F, scan = torch.nn.functional, _torch_scan_function(torch)

    def block(
        x: Any, wa: Any, wb: Any, wo: Any, wf1: Any, wf2: Any, *gains: Any, eps: float
    ) -> Any:
        g1, g2, g3, g4 = gains
        if time_major:
            x = x.transpose(0, 1).contiguous()
        shape, D = x.shape, x.shape[-1]
        x = x.reshape(-1, D)  # [N, D], N = B·T
        xn = F.rms_norm(x, (D,), g1, eps)
        a = torch.sigmoid(torch.addmm(wa[-1], xn, wa[:-1]))
        h = scan.apply(a.view(shape), (xn @ wb).view(shape), 0 if time_major else 1)
        out1 = torch.addmm(x, F.silu(h.view(-1, D) * g2), wo)
        sf = F.silu(F.rms_norm(out1, (D,), g3, eps) @ wf1)
        if time_major:
            return torch.addmm(out1, sf, wf2 * g4).view(shape).transpose(0, 1)
        return torch.addcmul(out1, sf @ wf2, g4).view(shape)

    return block


def _torch(threads: int) -> Any:
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    return torch


def _leaves(torch: Any, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: torch.tensor(a).requires_grad_() for name, a in arrays.items()}


def torch_helix(
    inputs: Mapping[str, np.ndarray],
    dy: np.ndarray,
    eps: float,
    threads: int,
    time_major: bool = False,
) -> Step:
    """The HELIX block's forward pass and all gradients of `inputs` (x and the weights)."""
    torch = _torch(threads)
    block = _torch_block(torch, time_major)
    leaves = list(_leaves(torch, inputs).values())
    cotangent = torch.tensor(dy)

    def step() -> Any:
        return torch.autograd.grad(block(*leaves, eps=eps), leaves, cotangent)

    return step


def torch_scan(a: np.ndarray, b: np.ndarray, dh: np.ndarray, threads: int) -> Step:
    """The gated scan and both gradients."""
    torch = _torch(threads)
    scan = _torch_scan_function(torch)
    leaves = list(_leaves(torch, {"a": a, "b": b}).values())
    cotangent = torch.tensor(dh)
    return lambda: torch.autograd.grad(scan.apply(*leaves, 1), leaves, cotangent)


def torch_chain(length: int, threads: int) -> Step:
    """A chain of additions of one-element tensors, and its backward pass."""
    torch = _torch(threads)

    def step() -> Any:
        x = torch.ones(1, requires_grad=True)
        y = x
        for _ in range(length):
            y = y + x
        y.backward()
        return [x.grad]

    return step


def torch_language_model(
    state: Mapping[str, np.ndarray],
    blocks: int,
    eps: float,
    tokens: np.ndarray,
    targets: np.ndarray,
    settings: Mapping[str, Any],
    threads: int,
) -> Step:
    """A training step of HelixLM from `state`, with AdamW of these `settings`."""
    torch = _torch(threads)
    F, block = torch.nn.functional, _torch_block(torch)
    named = _leaves(torch, state)
    layers = [
        [w for name, w in named.items() if name.startswith(f"blocks.{i}.")]
        for i in range(blocks)
    ]
    E, gain = named["embed.weight"], named["norm.gain"]
    optimizer = torch.optim.AdamW(named.values(), fused=True, **settings)
    rows, due = torch.tensor(tokens), torch.tensor(targets).reshape(-1)

    def step() -> Any:
        x = F.embedding(rows, E)  # [B, T, D]
        for weights in layers:
            x = block(x, *weights, eps=eps)
        logits = F.rms_norm(x.reshape(-1, x.shape[-1]), gain.shape, gain, eps) @ E.T
        loss = F.cross_entropy(logits, due)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return [loss.item()]

    return step


# --- JAX and MyGrad


def jax_helix(inputs: Mapping[str, np.ndarray], dy: np.ndarray, eps: float) -> Step:
    """The HELIX block's forward pass and all gradients of `inputs`, compiled as one."""
    jax = importlib.import_module("jax")
    jnp = jax.numpy

    def rms(z: Any, gain: Any) -> Any:
        return z * jax.lax.rsqrt(jnp.mean(z * z, axis=-1, keepdims=True) + eps) * gain

    def joined(first: Any, second: Any) -> Any:
        return first[0] * second[0], second[0] * first[1] + second[1]

    def block(x: Any, wa: Any, wb: Any, wo: Any, wf1: Any, wf2: Any, *gains: Any) -> Any:
        g1, g2, g3, g4 = gains
        xn = rms(x, g1)
        a = jax.nn.sigmoid(xn @ wa[:-1] + wa[-1])
        _, h = jax.lax.associative_scan(joined, (a, xn @ wb), axis=1)
        out1 = x + jax.nn.silu(h * g2) @ wo
        return out1 + jax.nn.silu(rms(out1, g3) @ wf1) @ wf2 * g4

    @jax.jit
    def gradients(values: Any, cotangent: Any) -> Any:
        y, vjp = jax.vjp(block, *values)
        return y, vjp(cotangent)

    values, cotangent = [jnp.asarray(a) for a in inputs.values()], jnp.asarray(dy)
    return lambda: jax.block_until_ready(gradients(values, cotangent))[1]


def mygrad_chain(length: int) -> Step:
    """A chain of additions of one-element tensors, and its backward pass."""
    mygrad = importlib.import_module("mygrad")

    def step() -> Any:
        x = mygrad.tensor(np.ones(1, np.float32))
        y = x
        for _ in range(length):
            y = y + x
        y.backward()
        return [x.grad]

    return step
