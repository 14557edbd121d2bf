"""Arguments that several commands take, and parsers of their values."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import HelixError

__all__ = [
    "DEVICE",
    "OWN",
    "SEED",
    "SIZES",
    "at_least",
    "complete",
    "seconds",
    "settings",
    "target_argument",
    "target_arguments",
]


def at_least(least: int) -> Callable[[str], int]:
    """A parser of whole numbers from `least` up."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is too small: at least {least}")
        return value

    return parse


SEED: dict[str, Any] = {
    "type": at_least(0),
    "default": 0,
    "metavar": "N",
    "help": "where the random numbers begin: inputs, weights, batches (%(default)s)",
}


DEVICE: dict[str, Any] = {
    "choices": ("cpu", "cuda"),
    "default": "cpu",
    "help": "where to compute (%(default)s)",
}


def seconds(text: str) -> float:
    """Parse a time that is more than 0 and finite."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time: more than 0 is due")
    return value


# Options that only one kind of TARGET reads, helix or one's own, with their defaults.
SIZES: dict[str, Any] = {"dim": 128, "batch": 8, "seq": 128, "dtype": "float32"}
OWN: dict[str, Any] = {"set": [], "variant": [], "inputs": "inputs"}


def complete(
    args: argparse.Namespace, helix: Mapping[str, Any], own: Mapping[str, Any]
) -> None:
    """Put in the defaults, and refuse options that the TARGET does not read."""
    ours = args.target == "helix"
    given = [f"--{n}" for n in (own if ours else helix) if getattr(args, n) is not None]
    if given:
        read = "a target of your own" if ours else "the target helix"
        several = len(given) > 1
        raise HelixError(
            f"{' and '.join(given)} {'apply' if several else 'applies'} only to {read} and "
            f"would change nothing here. Leave {'them' if several else 'it'} out."
        )
    for name, default in {**helix, **own}.items():
        if getattr(args, name) is None:
            setattr(args, name, default)


def target_argument(parser: argparse.ArgumentParser) -> None:
    """The one TARGET of a command."""
    parser.add_argument(
        "target",
        nargs="?",
        default="helix",
        metavar="TARGET",
        help="helix, file.py[:name] or pkg.mod[:name], as above (%(default)s)",
    )


def target_arguments(own: Any) -> None:
    """The options of a TARGET of the user's own."""
    own.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="N=4096",
        help="a setting for its inputs(); may be repeated",
    )
    own.add_argument(
        "--variant", action="append", default=[], help="a function to run; may be repeated"
    )
    own.add_argument(
        "--inputs", default="inputs", help="the function that makes the inputs (inputs)"
    )


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """What --set says, by name."""
    from ..targets import parse_settings

    return parse_settings(args.set)
