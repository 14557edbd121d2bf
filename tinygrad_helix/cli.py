"""The command line: `python -m tinygrad_helix` and `tinygrad-helix`."""

import argparse
import os
import sys
from collections.abc import Sequence

from . import __version__
from .commands import COMMANDS
from .commands.output import check_writable
from .errors import HelixError

__all__ = ["main"]

_DESCRIPTION = """\
See, to the byte, what fusing a whole block into one autodiff node buys.

Start with:  python -m tinygrad_helix compare
"""


def _parser() -> argparse.ArgumentParser:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="tinygrad-helix", description=_DESCRIPTION, formatter_class=style
    )
    parser.add_argument("--version", action="version", version=__version__)
    several = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        command = several.add_parser(
            name,
            help=module.SUMMARY,
            description=module.ABOUT,
            epilog=module.EXAMPLES,
            formatter_class=style,
        )
        command.set_defaults(run=module.run, parser=command)
        command.add_argument(
            "--json", metavar="FILE", help="write JSON to FILE (- for stdout)"
        )
        module.arguments(command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 is well, 1 a check that failed, 2 bad arguments."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    args, unknown = _parser().parse_known_args(argv)
    if unknown:  # with the usage of the command, not that of the whole program
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        if args.json and args.json != "-":
            check_writable(args.json)
        return args.run(args)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except HelixError as error:
        # Where it came from, and then where to read on.
        notes = sorted(getattr(error, "__notes__", []), key=lambda n: n.startswith("See:"))
        said = " ".join([str(error), *notes])
        print(f"tinygrad-helix {args.command}: {said}", file=sys.stderr)
        return 2
    except MemoryError as error:
        why = f" ({error})" if str(error) else ""
        print(
            f"tinygrad-helix {args.command}: there is not enough memory{why}. Make the "
            "shapes smaller.",
            file=sys.stderr,
        )
        return 2
