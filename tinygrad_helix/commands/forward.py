"""One forward pass of a TARGET, for the commands that look at its graph."""

import argparse
from dataclasses import dataclass
from typing import Any

from ..errors import HelixError
from .arguments import (
    OWN,
    SEED,
    SIZES,
    at_least,
    complete,
    settings,
    target_argument,
    target_arguments,
)

__all__ = ["Forward", "add_target", "forward", "result"]

_BLOCK: dict[str, Any] = {"mode": "composed", "policy": None, **SIZES}


@dataclass(frozen=True, slots=True)
class Forward:
    """A function's result `y`, the reader's `names` of Tensors and modules, a `title`, and
    the `config` that says how it was made."""

    y: Any
    names: dict[str, Any]
    title: str
    config: dict[str, Any]


def add_target(parser: argparse.ArgumentParser) -> None:
    """The options that say which function is run, and on what."""
    target_argument(parser)
    block = parser.add_argument_group("the HELIX block (TARGET helix)")
    block.add_argument(
        "--mode",
        choices=("composed", "primitive", "fused"),
        help="its form (composed; with --policy fused)",
    )
    block.add_argument(
        "--policy",
        metavar="POLICY",
        help="what the fused form keeps: keep9 … keep1, keep(x,a,out1), budget(4MB)",
    )
    for name, what in (("dim", "width D"), ("batch", "sequences B"), ("seq", "length T")):
        block.add_argument(f"--{name}", type=at_least(1), help=f"{what} ({_BLOCK[name]})")
    block.add_argument("--dtype", choices=("float32", "float64"), help="(float32)")
    own = parser.add_argument_group("a target of your own")
    target_arguments(own)
    parser.set_defaults(**dict.fromkeys(OWN))
    parser.add_argument("--seed", **SEED)


def forward(args: argparse.Namespace) -> Forward:
    """Run what the options say."""
    ours = args.target == "helix"
    if ours and args.policy and args.mode is None:
        args.mode = "fused"
    complete(args, _BLOCK, OWN)
    return _helix(args) if ours else _own(args)


def _helix(args: argparse.Namespace) -> Forward:
    import numpy as np

    from ..create import randn
    from ..language import parse_policy
    from ..nn import HelixBlock

    rng = np.random.default_rng(args.seed)
    policy = None if args.policy is None else parse_policy(args.policy)
    block = HelixBlock(
        args.dim, mode=args.mode, policy=policy, dtype=args.dtype, generator=rng
    )
    shape = (args.batch, args.seq, args.dim)
    x = randn(*shape, dtype=args.dtype, generator=rng, requires_grad=True)
    kept = "" if args.policy is None else f" {args.policy}"
    title = f"HELIX block, {args.mode}{kept}"
    config = {"target": "helix", "seed": args.seed}
    config |= {name: getattr(args, name) for name in _BLOCK}
    return Forward(block(x), {"x": x, "block": block}, title, config)


def result(target: Any, name: str) -> Any:
    """The (first) Tensor that a variant of a target returns."""
    from ..targets import TargetError
    from ..tensor import Tensor

    y = target.variants[name](**target.inputs)
    y = y[0] if isinstance(y, (tuple, list)) and y else y
    if not isinstance(y, Tensor):
        raise TargetError(
            f"{name}() of {target.name!r} returned {type(y).__name__}; its (first) result "
            "must be a Tensor."
        )
    return y


def _own(args: argparse.Namespace) -> Forward:
    from ..create import manual_seed
    from ..targets import load_target
    from ..viz.reader import nameable

    if len(args.variant) > 1:
        raise HelixError(
            f"--variant was given {len(args.variant)} times, and one graph is looked at. "
            "Name one."
        )
    chosen = settings(args)
    manual_seed(args.seed)
    target = load_target(args.target, chosen, args.variant, args.inputs)
    name = next(iter(target.variants))
    y = result(target, name)
    config = {"target": args.target, "variant": name, "set": chosen, "seed": args.seed}
    return Forward(y, dict(nameable(target.inputs)), f"{name} of {args.target}", config)
