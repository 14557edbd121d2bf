"""The main comparison: one byte-level language model, trained on real text, with its
blocks primitive, composed and fused under each policy, from the same weights."""

import os
import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from . import data, nn
from .accounting import profile
from .backend import backend_of, get_backend
from .compare import PAUSE, compare, on_host
from .differentiate import backward, grad
from .errors import ShapeError
from .fused.policy import WEIGHTS, Budget, Call, Keep, resolve
from .nn.helix import helix_block, predict_saved
from .optim import AdamW
from .report import Report, gradient_errors, output_folder, row
from .scratch import scratch
from .tensor import Tensor
from .viz.dial import dial_data
from .viz.trace import describe, trace

__all__ = ["POLICIES", "VOCABULARY", "compare_language_model", "parse_policy"]

VOCABULARY = 256  # one token a byte
POLICIES = ("keep9", "keep6", "keep4", "keep3", "keep2", "keep1")
LEARNING_RATE = 1e-3


def parse_policy(text: str) -> Any:
    """A policy as written on the command line: keep6, keep(x,a,out1), budget(4MB)."""
    match = re.fullmatch(r"(keep|budget)\((.*)\)", text.replace(" ", ""))
    if match is None:
        return text
    if match[1] == "keep":
        return Keep(*match[2].split(","))
    return Budget(int(match[2]) if match[2].isdigit() else match[2])


def _variants(policies: Sequence[Any]) -> dict[str, tuple[str, Any]]:
    named: dict[str, tuple[str, Any]] = {
        "composed": ("composed", None),
        "primitive": ("primitive", None),
    }
    for policy in policies:
        name = policy if isinstance(policy, str) else policy.name
        named[f"fused {name}"] = ("fused", policy)
    return named


def compare_language_model(
    *,
    dim: int = 128,
    layers: int = 2,
    batch: int = 8,
    seq: int = 128,
    steps: int = 5,
    warmup: int = 2,
    text: str = "package",
    seed: int = 0,
    dtype: str = "float32",
    policies: Sequence[Any] = POLICIES,
    device: str = "cpu",
    out: str | os.PathLike[str] | None = None,
) -> Report:
    """Train `HelixLM` a few steps each way and set block and whole step side by side.

    `rows` are of one block alone at [batch, seq, dim] with N(0, 1) input, with all ten
    gradients; `model` rows of the whole step, its loss after the last step included.
    Every variant sees the same batches and starts from the same weights; the variants take
    turns at every step, `warmup` of which are not timed. Bytes are measured before the
    training, untimed. Loss and gradients at step 0 are compared with the composed form, and
    the gradients with a float64 run of it.
    """
    from tqdm.auto import tqdm

    for name, value in (("dim", dim), ("layers", layers), ("batch", batch), ("seq", seq)):
        if value < 1:
            raise ShapeError(f"{name}={value}: it must be at least 1.")
    for name, value, least in (("steps", steps, 1), ("warmup", warmup, 0)):
        if value < least:
            raise ShapeError(f"{name}={value}: it must be at least {least}.")
    if out is not None:
        output_folder(out, keep=False)
    source = data.load_text(text)
    batches = iter(data.ByteBatches(source, batch, seq, seed))
    variants = _variants(policies)

    get_backend(device)
    report = _one_block(variants, dim, batch, seq, seed, dtype, device, repeats=steps)
    models = {
        name: _model(dim, layers, seed, dtype, mode, policy, device)
        for name, (mode, policy) in variants.items()
    }
    exact = _model(dim, layers, seed, "float64", "composed", None, device)
    tokens, targets = _batch(batches, device)
    first = {name: _gradients(m, tokens, targets) for name, m in models.items()}
    value, gradients = first["composed"]
    _, exact_gradients = _gradients(exact, tokens, targets)
    profiles = {
        name: profile(
            model.loss,
            {"tokens": tokens, "targets": targets},
            describe=partial(describe, named={"model": model}),
        )
        for name, model in tqdm(models.items(), desc="measuring", disable=None, leave=False)
    }
    times, losses = _train(models, tokens, targets, batches, warmup, steps)
    for name, (mode, policy) in variants.items():
        predicted = models[name].predict_saved(batch, seq)
        report.model.append(
            row(
                name,
                profiles[name],
                loss=losses[name],
                times=times[name],
                value_diff=gradient_errors({"y": first[name][0]}, {"y": value})["y"],
                diffs=gradient_errors(first[name][1], gradients),
                grads=gradient_errors(first[name][1], exact_gradients),
                mode=mode,
                policy=None if policy is None else name.removeprefix("fused "),
                predicted=sum(predicted.values()),
            )
        )
    report.events = {name: p.events for name, p in profiles.items()}
    report.traces["model"] = {
        name: trace(profiles[name], partial(_inside, model, tokens, targets))
        for name, model in models.items()
    }
    wanted = frozenset(("x", *WEIGHTS))
    call = Call((batch, seq, dim), np.dtype(dtype).itemsize, wanted)
    report.dial = dial_data(
        call,
        {
            name: resolve(policy, call)
            for name, (mode, policy) in variants.items()
            if mode == "fused"
        },
    )
    report.config |= {
        "target": "helix",
        "dim": dim,
        "layers": layers,
        "batch": batch,
        "seq": seq,
        "steps": steps,
        "warmup": warmup,
        "text": text,
        "text_bytes": source.length,
        "text_sha256": source.sha256,
        "seed": seed,
        "vocabulary": VOCABULARY,
        "learning_rate": LEARNING_RATE,
        "parameters": sum(p.size for p in exact.parameters()),
    }
    if out is not None:
        report.save(out)
    return report


def _batch(batches: Any, device: str) -> Any:
    """The next tokens and targets, on `device`."""
    return [get_backend(device).asarray(ids) for ids in next(batches)]


def _model(
    dim: int, layers: int, seed: int, dtype: str, mode: str, policy: Any, device: str
) -> Any:
    return nn.HelixLM(
        VOCABULARY,
        dim,
        layers,
        mode=mode,
        policy=policy,
        dtype=np.dtype(dtype),
        generator=np.random.default_rng(seed),
        device=device,
    )


def _one_block(
    variants: Mapping[str, tuple[str, Any]],
    dim: int,
    batch: int,
    seq: int,
    seed: int,
    dtype: str,
    device: str,
    repeats: int,
) -> Report:
    rng = np.random.default_rng(seed)
    block = nn.HelixBlock(dim, dtype=np.dtype(dtype), generator=rng, device=device)
    shape = (batch, seq, dim)
    weights = dict(block.named_parameters())
    x = Tensor(rng.standard_normal(shape).astype(dtype), requires_grad=True)

    def form(mode: str, policy: Any) -> Any:
        return lambda **inputs: helix_block(**inputs, mode=mode, policy=policy)

    return compare(
        {name: form(mode, policy) for name, (mode, policy) in variants.items()},
        {"x": x, **weights},
        parameters=weights,
        predicted={
            name: sum(predict_saved(mode, policy, shape, np.dtype(dtype)).values())
            for name, (mode, policy) in variants.items()
        },
        modes={
            name: (mode, None if policy is None else name.removeprefix("fused "))
            for name, (mode, policy) in variants.items()
        },
        repeats=repeats,
        device=device,
    )


def _gradients(
    model: Any, tokens: Any, targets: Any
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The loss, and its gradients by parameter."""
    named = dict(model.named_parameters())
    loss = model.loss(tokens, targets)
    found = grad(loss, list(named.values()))
    grads = {k: on_host(g) for k, g in zip(named, found, strict=True) if g is not None}
    return on_host(loss), grads


def _inside(model: Any, tokens: Any, targets: Any, number: int) -> Any:
    """What a vjp of the step has alive at its highest point."""
    return scratch(model.loss(tokens, targets), number)


def _train(
    models: Mapping[str, Any],
    tokens: Any,
    targets: Any,
    batches: Any,
    warmup: int,
    steps: int,
) -> tuple[dict[str, list[tuple[float, float, float]]], dict[str, float]]:
    """(forward, backward, whole step) seconds of every timed step, and the last loss."""
    from tqdm.auto import tqdm

    optimizers = {
        name: AdamW(list(model.parameters()), lr=LEARNING_RATE)
        for name, model in models.items()
    }
    times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in models}
    device = backend_of(tokens)
    synchronize = device.synchronize
    losses: dict[str, float] = {}
    for step in tqdm(range(warmup + steps), desc="training", disable=None, leave=False):
        for name, model in models.items():
            time.sleep(PAUSE)
            start = time.perf_counter()
            loss = model.loss(tokens, targets)
            synchronize()
            middle = time.perf_counter()
            backward(loss)
            synchronize()
            swept = time.perf_counter()
            optimizers[name].step()
            optimizers[name].zero_grad()
            synchronize()
            end = time.perf_counter()
            losses[name] = loss.item()
            if step >= warmup:
                times[name].append((middle - start, swept - middle, end - start))
        tokens, targets = _batch(batches, device.name)
    return times, losses
