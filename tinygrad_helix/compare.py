"""Comparing variants of one function: what each keeps, how high it peaks, how fast it is,
and whether the gradients agree."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from .accounting import Profile, profile
from .backend import backend_of, get_backend, is_array
from .differentiate import grad
from .errors import DTypeError, GraphError, ShapeError
from .report import Report, gradient_errors, made_with, output_folder, row
from .scratch import scratch
from .sweep import Sweep
from .tape import plain
from .tensor import Tensor
from .viz.trace import describe, trace

__all__ = ["compare", "on_host"]

# Seconds before every timed run: BLAS threads go on spinning for a while after a product
# and would slow the next contender.
PAUSE = 0.1


def _checked(variants: Any, inputs: Any, reference: str | None) -> str:
    if not isinstance(variants, Mapping) or not variants:
        raise DTypeError("compare takes variants as a dict {name: function}, at least one.")
    for name, fn in variants.items():
        if not callable(fn):
            raise DTypeError(f"variant {name!r} is no function but {type(fn).__name__}.")
    if not isinstance(inputs, Mapping):
        raise DTypeError(
            f"compare takes inputs as a dict {{name: Tensor}}; got {type(inputs).__name__}."
        )
    if not any(isinstance(x, Tensor) and x.requires_grad for x in inputs.values()):
        raise GraphError(
            "no input of compare requires a gradient, so there is nothing to compare. Make "
            "Tensors with requires_grad=True."
        )
    if reference is not None and reference not in variants:
        raise GraphError(
            f"the reference {reference!r} is no variant. Choose of: {', '.join(variants)}."
        )
    return reference or next(iter(variants))


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, (tuple, list)) else value


def _run(fn: Callable[..., Any], inputs: Mapping[str, Any], name: str) -> Tensor:
    y = _first(fn(**inputs))
    if isinstance(y, Tensor) and y.requires_grad and y.node is None:
        raise GraphError(
            f"variant {name!r} returned an input or a parameter as it is: no op is on the "
            "tape, so there is nothing to compare. Compute something from the inputs."
        )
    if not isinstance(y, Tensor) or not y.requires_grad:
        what = f"a Tensor of shape {y.shape}" if isinstance(y, Tensor) else type(y).__name__
        raise GraphError(
            f"variant {name!r} returned {what} that requires no gradient. Its (first) "
            "result must be a Tensor computed from the inputs."
        )
    return y


def _gradients(
    y: Tensor, inputs: Mapping[str, Any], cotangent: Any
) -> dict[str, np.ndarray]:
    names = [k for k, x in inputs.items() if isinstance(x, Tensor) and x.requires_grad]
    results = grad(y, [inputs[k] for k in names], cotangent, allow_unused=True)
    return {
        k: np.zeros(inputs[k].shape, inputs[k].dtype) if g is None else on_host(g)
        for k, g in zip(names, results, strict=True)
    }


def on_host(x: Any) -> np.ndarray:
    """The values of a Tensor or array of any device."""
    array = plain(x)
    return backend_of(array).to_numpy(array)


def _leaves(inputs: Mapping[str, Any], device: str | None) -> dict[str, Any]:
    """New leaves on the same arrays (or copies of them on `device`), so that nothing
    reaches the caller's Tensors or the graphs that these came from; one Tensor under two
    names stays one."""
    made: dict[int, Tensor] = {}
    leaves = {}
    for name, x in inputs.items():
        if isinstance(x, Tensor):
            if id(x) not in made:
                leaf = Tensor(x.data, requires_grad=x.requires_grad, device=device)
                made[id(x)] = leaf
            x = made[id(x)]
        elif is_array(x) and device is not None:
            x = get_backend(device).asarray(x)
        leaves[name] = x
    return leaves


def _in_float64(x: Any) -> Any:
    if isinstance(x, Tensor) and x.dtype.kind == "f":
        return Tensor(x.data.astype(np.float64), requires_grad=x.requires_grad)
    return x.astype(np.float64) if is_array(x) and x.dtype.kind == "f" else x


def _exact(
    fn: Callable[..., Any], inputs: Mapping[str, Any], dy: Tensor, name: str
) -> dict[str, np.ndarray]:
    """The gradients of a run in float64; none if the function does not run so, because it
    closes over float32 parameters, say (it has run in its own dtype before)."""
    exact = {k: _in_float64(x) for k, x in inputs.items()}
    try:
        return _gradients(_run(fn, exact, name), exact, _in_float64(dy))
    except Exception:
        return {}


def compare(
    variants: Mapping[str, Callable[..., Any]],
    inputs: Mapping[str, Any],
    *,
    reference: str | None = None,
    cotangent: Any = None,
    parameters: Iterable[str] = (),
    predicted: Mapping[str, int] | None = None,
    modes: Mapping[str, tuple[str | None, str | None]] | None = None,
    repeats: int = 5,
    device: str | None = None,
    out: str | os.PathLike[str] | None = None,
) -> Report:
    """Run every variant on the same inputs and set them beside one another.

    `variants` maps names to functions that are called as fn(**inputs); the (first) result
    is swept from `cotangent` (by default ones for a single element, else N(0, 1) from a
    fixed seed). `reference` (by default the first variant) is what values and gradients are
    compared with; where it runs in float64 too, gradients are compared with that run. What
    the variants close over gets no gradients from this. `parameters` names the inputs that
    count as parameters, not as saved bytes. `predicted` gives bytes by variant where the
    ops do not state them (`Op.predict`), and `modes` the mode and policy to show. Times are
    medians of `repeats` interleaved runs, untraced, after one to warm up; bytes come from
    runs of their own. The inputs are copied to `device` if one is given; what the variants
    close over must be there already. With `out`, report, page and picture are
    written there (`Report.save`).

    >>> import tinygrad_helix as th
    >>> x = th.ones(4, 8, requires_grad=True)
    >>> report = th.compare({"mul": lambda x: (x * x).sum(), "pow": lambda x: (x**2).sum()},
    ...                     {"x": x}, repeats=1)
    >>> [r.saved_bytes["counted"] for r in report.rows], report.check()
    ([128, 128], [])
    """
    from tqdm.auto import tqdm

    reference = _checked(variants, inputs, reference)
    if device is not None:
        get_backend(device)
    if repeats < 1:
        raise ShapeError(f"repeats={repeats}: at least 1 run is needed.")
    if out is not None:
        output_folder(out, keep=False)
    names = tuple(parameters)
    missing = [name for name in names if name not in inputs]
    if missing:
        raise GraphError(
            f"parameters names {', '.join(missing)}, which are no inputs. The inputs are: "
            f"{', '.join(inputs)}."
        )
    inputs = _leaves(inputs, device)
    ys = {name: _run(fn, inputs, name) for name, fn in variants.items()}
    shape = ys[reference].shape
    for name, y in ys.items():
        if y.shape != shape:
            raise ShapeError(
                f"variant {name!r} returned shape {y.shape}, {reference!r} {shape}. All "
                "variants must compute the same."
            )
    dtype = ys[reference].dtype
    if cotangent is None:
        rng = np.random.default_rng(0)
        cotangent = (
            np.ones(shape) if ys[reference].size == 1 else rng.standard_normal(shape)
        )
    device = ys[reference].device
    dy = Tensor(plain(cotangent), device=device)
    dy = dy if dy.dtype == dtype else dy.astype(dtype)

    losses = {
        name: float((y.data.astype(np.float64) * dy.data).sum()) for name, y in ys.items()
    }
    gradients = {name: _gradients(y, inputs, dy) for name, y in ys.items()}
    values = {name: on_host(y) for name, y in ys.items()}
    value_diffs = {
        name: gradient_errors({"y": v}, {"y": values[reference]})["y"]
        for name, v in values.items()
    }
    del ys, values
    exact = _exact(variants[reference], inputs, dy, reference)
    profiles = {
        name: profile(
            variants[name], inputs, parameters=names, cotangent=dy.data, describe=describe
        )
        for name in tqdm(variants, desc="measuring", disable=None, leave=False)
    }
    times = _times(variants, inputs, dy, repeats)
    rows = []
    for name in variants:
        mode, policy = (modes or {}).get(name, (None, None))
        rows.append(
            row(
                name,
                profiles[name],
                loss=losses[name],
                times=times[name],
                value_diff=value_diffs[name],
                diffs=gradient_errors(gradients[name], gradients[reference]),
                grads=gradient_errors(gradients[name], exact),
                mode=mode,
                policy=policy,
                predicted=(predicted or {}).get(name),
            )
        )
    config = {"dtype": str(dtype), "device": device, "repeats": repeats} | made_with()
    report = Report(config, rows, [], {k: p.events for k, p in profiles.items()}, reference)

    def made(name: str, p: Profile) -> dict[str, Any]:
        return trace(p, lambda n: scratch(_run(variants[name], inputs, name), n, dy.data))

    report.traces["rows"] = {name: made(name, p) for name, p in profiles.items()}
    if out is not None:
        report.save(out)
    return report


def _times(
    variants: Mapping[str, Callable[..., Any]],
    inputs: Mapping[str, Any],
    dy: Tensor,
    repeats: int,
) -> dict[str, list[tuple[float, float]]]:
    """(forward, backward) seconds of every variant, in turns; no gradient lands."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    synchronize = backend_of(dy.data).synchronize
    for turn in range(repeats + 1):
        for name, fn in variants.items():
            time.sleep(PAUSE)
            start = time.perf_counter()
            y = _first(fn(**inputs))
            synchronize()
            middle = time.perf_counter()
            arrived = Sweep([y.edge], [dy.data], Tensor._of_edge).run()
            synchronize()
            end = time.perf_counter()
            del y, arrived
            if turn:
                times[name].append((middle - start, end - middle))
    return times
