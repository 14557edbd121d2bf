"""`kernels`: CUDA kernels compiled without a GPU, and run on the CPU."""

import argparse
from dataclasses import asdict
from typing import Any

from ..errors import KernelError
from .arguments import SEED, at_least
from .output import unicode_stdout, versions, write_json

__all__ = ["ABOUT", "EXAMPLES", "SUMMARY", "arguments", "run"]

_ARCHITECTURE = "sm_90"

SUMMARY = "CUDA kernels: compiled without a GPU, and run on the CPU"

ABOUT = """\
Compile the package's CUDA kernels, or a .cu file of yours, for GPUs that are not there, and
show what each thread and block takes (all of the package's for one architecture: one or
two minutes; a bar on stderr shows how far it is):

  registers  of a thread, for each architecture, beside the most that the file allows it;
             "!" marks more than that, "+16 B" bytes that were spilled to memory because
             registers ran out
  shared     bytes of static shared memory, of a block

With --run NAME, run a kernel of the file on this CPU instead, on inputs that are made up
from the comment above it, in four orders of threads:

  // x, y [n]
  extern "C" __global__ void saxpy(const float* x, float* y, float a, int n) { … }

  python -m tinygrad_helix kernels my.cu --run saxpy --set n=1000 --set a=2

Shown is what it wrote, whether the orders agree (a missing barrier shows there), whether it
went past the ends of its arrays (a missing "if (i < n)"), and with
--against my.py how far it is from the function of the same name in that file, which gets
the arguments by name and returns what should have been written:

  def saxpy(x, y, a, n): return a * x + y

--sanitize repeats it under the address and thread sanitizers of g++, which find reads and
writes outside of arrays, and races. The same from Python: tinygrad_helix.cuda.host.

Instances of templates are stated in the file, with the registers that they may use:

  // scale<{float, double}, 4>: 32 registers
"""

EXAMPLES = """\
examples:
  python -m tinygrad_helix kernels
  python -m tinygrad_helix kernels scan.cu --arch sm_80 --arch sm_90
  python -m tinygrad_helix kernels --arch all
  python -m tinygrad_helix kernels my.cu --run saxpy --against my.py --sanitize

Compiling needs NVRTC, running g++, both CUDA's headers (Linux):
  pip install "tinygrad_helix[test-cuda]"

exit status: 0 if all is well; 1 if a kernel spills, uses more registers than it may, or is
wrong; 2 for bad arguments and for what does not compile.
"""


def _dimensions(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(int(n) for n in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: write 64 or 8,8,4") from None
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: one to three numbers from 1 on")
    return sizes


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "file", nargs="*", metavar="FILE", help=".cu files (all of the package's)"
    )
    parser.add_argument(
        "--arch",
        action="append",
        metavar="SM",
        help="compile for this architecture (sm_90), or all of them (sm_75 to sm_100); may "
        "be repeated",
    )
    trial = parser.add_argument_group("running on the CPU")
    trial.add_argument(
        "--run",
        dest="kernel",
        metavar="NAME",
        help='the kernel, of a template as in "scale<float, 4>"',
    )
    trial.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="N=1000",
        help="a size, a scalar, or None for a pointer; may be repeated",
    )
    trial.add_argument(
        "--grid", type=_dimensions, metavar="X,Y,Z", help="blocks (a thread an output)"
    )
    trial.add_argument(
        "--block",
        type=_dimensions,
        metavar="X,Y,Z",
        help="threads of a block (its __launch_bounds__, or 128)",
    )
    trial.add_argument(
        "--shared",
        type=at_least(0),
        metavar="BYTES",
        help="dynamic shared memory (0)",
    )
    trial.add_argument("--against", metavar="FILE.py", help="the same in Python")
    trial.add_argument(
        "--tolerance",
        type=float,
        metavar="E",
        help="what may differ, of the largest value (by the dtype: 1e-5 for float32)",
    )
    trial.add_argument(
        "--sanitize", action="store_true", help="and under the sanitizers of g++"
    )
    trial.add_argument("--seed", **SEED)


def run(args: argparse.Namespace) -> int:
    """Compile, or run, and print the table."""
    idle = [
        f"--{name}"
        for name in ("set", "grid", "block", "shared", "against", "tolerance", "sanitize")
        if getattr(args, name)
    ]
    if args.kernel is not None:
        if len(args.file) != 1:
            raise KernelError("--run takes one FILE: kernels my.cu --run NAME")
        if args.arch:
            raise KernelError("--arch would change nothing: --run is on the CPU. Leave it.")
        return _run(args)
    if idle:
        raise KernelError(
            f"{', '.join(idle)} would change nothing without --run NAME. Say which kernel."
        )
    return _compile(args)


def _compile(args: argparse.Namespace) -> int:
    from tqdm.auto import tqdm

    from ..cuda.compile import ARCHITECTURES, architectures, nvrtc_version, resources
    from ..cuda.source import KERNELS, read_source

    files = args.file or sorted(path.name for path in KERNELS.glob("*.cu"))
    archs = args.arch or [_ARCHITECTURE]
    if "all" in archs:
        archs = [a for a in ARCHITECTURES if a in architectures()]
    archs = list(dict.fromkeys(a if a.startswith("sm_") else f"sm_{a}" for a in archs))
    sources = [read_source(file) for file in files]
    jobs = [(source, arch) for source in sources for arch in archs]
    rows: list[Any] = []
    with tqdm(jobs, desc="compiling", unit="file", disable=args.json == "-") as bar:
        for source, arch in bar:
            bar.set_postfix_str(f"{source.name} for {arch}")
            rows += resources(source, arch)
    if args.json:
        config = {
            "files": files,
            "arch": archs,
            "nvrtc": nvrtc_version(),
            "versions": versions(),
        }
        table = [asdict(row) | {"ok": row.ok} for row in rows]
        write_json({"schema": 1, "config": config, "rows": table}, args.json)
    if args.json != "-":
        print(f"NVRTC {nvrtc_version()}: registers of a thread\n")
        print(_table(rows, archs))
    return 0 if all(row.ok for row in rows) else 1


def _table(rows: list[Any], archs: list[str]) -> str:
    """A line a kernel, a column an architecture."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        found.setdefault((row.file, row.kernel), {})[row.arch] = row

    def cell(row: Any) -> str:
        spilled = f" +{row.spill_bytes} B" if row.spill_bytes else ""
        return f"{row.registers}{spilled}{'' if row.ok else ' !'}"

    lines = [["kernel", "allowed", *archs, "shared"]]
    file = None
    for (at, kernel), by_arch in found.items():
        if at != file:
            lines.append([at])
            file = at
        any_row = next(iter(by_arch.values()))
        allowed = "" if any_row.budget is None else str(any_row.budget)
        shared = max(row.shared_bytes for row in by_arch.values())
        lines.append(
            [f"  {kernel}", allowed, *(cell(by_arch[a]) for a in archs), f"{shared:,} B"]
        )
    full = [line for line in lines if len(line) > 1]
    widths = [max(len(line[i]) for line in full) for i in range(len(full[0]))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=False))
        ).rstrip()
        for line in lines
    )


def _run(args: argparse.Namespace) -> int:
    from ..cuda.child import sanitized, tried
    from ..targets import parse_settings

    job = {
        "file": args.file[0],
        "expression": args.kernel,
        "settings": parse_settings(args.set),
        "grid": args.grid,
        "block": args.block,
        "shared_mem": args.shared or 0,
        "against": args.against,
        "tolerance": args.tolerance,
        "seed": args.seed,
    }
    # First, since a kernel that goes astray is told about best there.
    reports = sanitized(job) if args.sanitize else {}
    result = tried(job)
    result.sanitizers.update(reports)
    if args.json:
        config = {**job, "orders": 4, "versions": versions()}
        write_json({"schema": 1, "config": config, "rows": [_row(result)]}, args.json)
    if args.json != "-":
        print(_shown(result))
    return 0 if result.ok else 1


def _row(result: Any) -> dict[str, Any]:
    outputs = [asdict(o) | {"ok": o.ok} for o in result.outputs]
    return asdict(result) | {"outputs": outputs, "ok": result.ok}


def _shown(result: Any) -> str:
    given = ", ".join(f"{name} = {value}" for name, value in result.arguments.items())
    grid, block = (" x ".join(map(str, d)) for d in (result.grid, result.block))
    blocks = "block" if grid == "1" else "blocks"
    lines = [f"{result.kernel} on the CPU"]
    if given:  # it came to an end
        lines[0] += f": {grid} {blocks} of {block} threads"
        lines += [f"  {given}", ""]
    lines += [f"  WRONG: {text}" for text in result.outside]
    dash = "–" if unicode_stdout() else "-"
    for o in result.outputs:
        size = 1
        for n in o.shape:
            size *= n
        lines.append(
            f"  {o.name}: {o.changed:,} of {size:,} elements changed, now "
            f"{o.least:.6g} {dash} {o.most:.6g}"
            + (f", {o.not_finite:,} not finite" if o.not_finite else "")
        )
        well = "the four orders of threads agree"
        if o.between_orders > o.tolerance:
            well = (
                f"WRONG: orders of threads differ by {o.between_orders:.2g} of the largest "
                "value. A barrier is missing, or threads write to one place"
            )
        elif o.between_orders:
            well += f" up to {o.between_orders:.2g} of the largest value"
        lines.append(f"    {well}")
        if o.against is not None:
            good = o.against <= o.tolerance
            lines.append(
                f"    {'' if good else 'WRONG: '}{o.against:.2g} of the largest value from "
                f"the reference{'' if good else f', allowed are {o.tolerance:g}'}"
            )
    for kind, report in result.sanitizers.items():
        lines.append(
            f"  {kind} sanitizer: {'found nothing' if report is None else 'FOUND'}"
        )
        lines += [f"    {line}" for line in (report or "").splitlines()]
    return "\n".join(lines)
