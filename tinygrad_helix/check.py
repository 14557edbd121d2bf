"""Is it right, does it keep what it reads, and do the bytes agree?

`check` asks that of one function with its inputs, `check_package` of every op, layer and
block of the package; for a user's files see `submissions`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from . import memory
from .accounting import measure_saved, profile
from .audit import audit
from .backend import backend_of, is_array
from .compare import on_host
from .cuda.device import unavailable
from .differentiate import grad
from .errors import DoubleBackwardError, GradcheckError, HelixError
from .gradcheck import float_outputs, gradcheck
from .report import gradient_errors
from .samples import Sample, blocks, layers, op_names, op_sample
from .tables import aligned
from .targets import TargetError, told
from .tensor import Tensor

__all__ = [
    "Row",
    "check",
    "check_package",
    "devices",
    "one_line",
    "summary",
    "table",
    "to_json",
]

SCHEMA = "tinygrad_helix.check/1"
_AGREE = 1e-10  # of values and gradients in float64, relative to the largest


@dataclass(slots=True)
class Row:
    """What was tried on one function or op, and what came of it.

    `gradcheck` (first order), `second_order`, `agrees` (with another form of the same) and
    `audit` are "ok", "failed", "none" (a second derivative is refused, as it should be) or
    "-" (does not apply). `verdict` is "ok", "failed", "error" (it could not be run), or
    "not tried". `findings` say what failed, `notes` what is worth knowing.
    """

    target: str
    name: str
    gradcheck: str = "-"
    second_order: str = "-"
    agrees: str = "-"
    audit: str = "-"
    saved_bytes: dict[str, int | None] = field(
        default_factory=lambda: dict.fromkeys(("predicted", "counted", "measured"))
    )
    verdict: str = "ok"
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def fail(self, finding: str) -> str:
        self.verdict = "failed"
        if finding not in self.findings:
            self.findings.append(finding)
        return "failed"


# --- one function


def check(sample: Sample, target: str = "") -> Row:
    """Try everything that applies to the sample's function on its inputs."""
    row = Row(target, sample.name)
    for name, value in _named(sample).items():
        if name in sample.parameters:
            memory.mark_parameter(value.data if isinstance(value, Tensor) else value)
    try:
        result = sample.fn(*sample.values)
        outputs = float_outputs(result)
    except Exception as error:
        row.verdict = "error"
        row.findings.append(one_line(sample.name, error))
        return row
    if sample.gradient and not outputs:
        what = "None"
        if result is not None:
            what = f"{type(result).__name__} without a Tensor of floats"
        row.gradcheck = row.fail(f"{sample.name} returned {what}. Return its result.")
        return row
    del result
    if not sample.gradient:
        row.saved_bytes["predicted"] = 0
        if any(y.requires_grad for y in outputs):
            row.fail(f"{sample.name} is to have no gradient, and its result requires one.")
        row.saved_bytes["counted"] = memory.saved_bytes(*outputs)
        del outputs
        row.saved_bytes["measured"] = measure_saved(_by_name(sample), _named(sample))
        _bytes_agree(row)
        return row
    del outputs
    row.gradcheck = _tried(row, sample, "the gradient check", lambda: _gradcheck(sample, 1))
    if row.gradcheck == "ok":
        row.second_order = _second_order(row, sample)
    if sample.reference is not None:
        row.agrees = _tried(row, sample, "the comparison", lambda: _agreement(row, sample))
    row.audit = _tried(row, sample, "the audit", lambda: _audit(row, sample))
    _tried(row, sample, "the accounting", lambda: _accounting(row, sample))
    return row


def _tried(row: Row, sample: Sample, what: str, part: Callable[[], str]) -> str:
    try:
        return part()
    except GradcheckError as error:
        return row.fail(_with_names(str(error), sample.names))
    except Exception as error:
        return row.fail(one_line(f"{what} of {sample.name}", error))


def one_line(what: str, error: Exception) -> str:
    """An exception as a finding."""
    if isinstance(error, TargetError):  # it names what raised it
        return str(error)
    if isinstance(error, HelixError):
        return f"{what}: {' '.join(str(error).split())}"
    return told(what, error)


def _with_names(message: str, names: Sequence[str]) -> str:
    """A message of `gradcheck` with arguments by name instead of by number."""
    return re.sub(r"input (\d+)", lambda m: names[int(m[1])], message)


def _gradcheck(sample: Sample, order: int) -> str:
    gradcheck(sample.fn, sample.values, order=order)
    return "ok"


def _second_order(row: Row, sample: Sample) -> str:
    """Second derivatives: right, or refused, or (of a user's op) not there."""
    try:
        _gradcheck(sample, 2)
    except GradcheckError as error:
        message = _with_names(str(error), sample.names)
        return row.fail(f"second order: {message}")
    except DoubleBackwardError as error:
        if sample.second:
            return row.fail(one_line("second order", error))
        return "none"
    except Exception as error:
        message = one_line("differentiating twice", error)
        if sample.second is not None:
            return row.fail(message)
        row.notes.append(f"{message} To refuse it, raise DoubleBackwardError.")
        return "none"
    if sample.second is False:
        return row.fail("second order: DoubleBackwardError is due, and there was none.")
    return "ok"


def _results(fn: Callable[..., Any], sample: Sample, outputs: int) -> dict[str, Any]:
    """The first `outputs` outputs and the gradients along one direction, in float64."""
    values = [_in_float64(v) for v in sample.values]
    ys = float_outputs(fn(*values))[:outputs]
    rng = np.random.default_rng(0)
    dys = [backend_of(y.data).asarray(rng.standard_normal(y.shape)) for y in ys]
    wanted = {
        name: v
        for name, v in zip(sample.names, values, strict=True)
        if isinstance(v, Tensor) and v.requires_grad
    }
    found = grad(ys, list(wanted.values()), dys, allow_unused=True)
    results = {f"output {i}": on_host(y) for i, y in enumerate(ys)}
    return results | {
        f"the gradient of {name}": np.zeros(x.shape) if g is None else on_host(g)
        for (name, x), g in zip(wanted.items(), found, strict=True)
    }


def _in_float64(value: Any) -> Any:
    if isinstance(value, Tensor) and value.dtype.kind == "f":
        copy = value.data.astype(np.float64)
        return Tensor(copy, requires_grad=value.requires_grad)
    if is_array(value) and value.dtype.kind == "f":
        return value.astype(np.float64)
    return value


def _agreement(row: Row, sample: Sample) -> str:
    reference = sample.reference or sample.fn
    try:
        others = float_outputs(reference(*sample.values))
        count = min(len(float_outputs(sample.fn(*sample.values))), len(others))
        want = _results(reference, sample, count)
    except Exception:  # its own row says so
        return "-"
    if not count:
        return "-"
    got = _results(sample.fn, sample, count)
    for name, value in want.items():
        if got[name].shape != value.shape:
            return row.fail(
                f"{name} has shape {got[name].shape}, in {sample.reference_name} "
                f"{value.shape}."
            )
    for name, error in gradient_errors(got, want).items():
        if not error <= _AGREE:
            return row.fail(
                f"{name} differs from {sample.reference_name}'s by {error:.1e} of its "
                f"largest value (float64, bound {_AGREE:.0e})."
            )
    return "ok"


def _audit(row: Row, sample: Sample) -> str:
    """The audit with every gradient wanted that the inputs ask for, and each alone."""
    if sample.ops is not None and not sample.ops:
        return "-"
    names = None if sample.ops is None else {op.name for op in sample.ops}
    wanted = [
        i for i, v in enumerate(sample.values) if isinstance(v, Tensor) and v.requires_grad
    ]
    verdict = "ok"
    given = sample.audit_values or sample.values
    for subset in dict.fromkeys([tuple(wanted), *((i,) for i in wanted)]):
        values = [
            Tensor(v.data, requires_grad=i in subset) if isinstance(v, Tensor) else v
            for i, v in enumerate(given)
        ]
        for finding in audit(sample.fn, *values).findings:
            if names is None or finding.op in names:
                verdict = row.fail(str(finding))
    return verdict


def _named(sample: Sample) -> dict[str, Any]:
    return dict(zip(sample.names, sample.values, strict=True))


def _by_name(sample: Sample) -> Callable[..., Any]:
    return lambda **inputs: sample.fn(*(inputs[name] for name in sample.names))


def _accounting(row: Row, sample: Sample) -> str:
    found = profile(_by_name(sample), _named(sample), parameters=sample.parameters)
    row.saved_bytes = {
        "predicted": found.predicted if sample.predicted is None else sample.predicted,
        "counted": found.counted,
        "measured": found.measured,
    }
    _bytes_agree(row)
    return "ok"


def _bytes_agree(row: Row) -> None:
    predicted, counted, measured = row.saved_bytes.values()
    if predicted is not None and predicted != counted:
        row.fail(f"{predicted:,} saved bytes are predicted, and {counted:,} counted.")
    if counted != measured:
        why = "some are kept outside it."
        if counted is not None and measured is not None and counted > measured:
            why = "something outside still holds the graph, or what it saved."
        row.fail(
            f"{counted:,} saved bytes are counted on the tape, and {measured:,} measured: "
            + why
        )


# --- the package


def devices() -> list[str]:
    """The devices that this machine has."""
    return ["cpu", "cuda"] if unavailable() is None else ["cpu"]


def check_package(
    only_helix: bool = False, only_devices: Sequence[str] = ()
) -> Iterator[Row]:
    """A row for every op, block and layer there is (or the HELIX block and model alone),
    on each device there is (or those named)."""
    from tqdm.auto import tqdm

    samples = list(blocks()) + [s for s in layers() if s.name.startswith("Helix")]
    if not only_helix:
        others = [s for s in layers() if not s.name.startswith("Helix")]
        samples = [op_sample(name) for name in op_names()] + others + samples
    every = [(device, sample) for device in only_devices or devices() for sample in samples]
    for device, sample in tqdm(every, desc="checking", disable=None, leave=False):
        yield check(sample.to(device), "helix" if only_helix else "package")


# --- what is shown

_HEAD = (
    *("checked", "gradient", "second", "agrees", "audit"),
    *("predicted", "counted", "measured", "verdict"),
)


def table(rows: Sequence[Row]) -> str:
    """The rows as text, a line each, and below it what was found."""
    several = len({row.target for row in rows}) > 1
    lines = [["target", *_HEAD] if several else list(_HEAD)]
    for row in rows:
        sizes = ["-" if n is None else f"{n:,}" for n in row.saved_bytes.values()]
        tried = [row.gradcheck, row.second_order, row.agrees, row.audit]
        line = [row.name, *tried, *sizes, row.verdict]
        lines.append([row.target, *line] if several else line)
    text = aligned(lines, left=2 if several else 1)
    told = [
        f"{_of(row)}: {finding}" for row in rows for finding in (*row.findings, *row.notes)
    ]
    return "\n".join([text, *([""] if told else []), *told])


def _of(row: Row) -> str:
    return ", ".join(filter(None, (row.target, row.name)))


def summary(rows: Iterable[Row]) -> dict[str, int]:
    """How many of the targets came out as what: failed or error if one of its rows did."""
    worst: dict[str, str] = {}
    for row in rows:
        order = ("not tried", "ok", "failed", "error")
        worst[row.target] = max(
            worst.get(row.target, "not tried"), row.verdict, key=order.index
        )
    return {"targets": len(worst)} | Counter(worst.values())


def to_json(rows: Sequence[Row], config: Mapping[str, Any]) -> dict[str, Any]:
    """The rows as plain data: schema, config, rows, summary."""
    return {
        "schema": SCHEMA,
        "config": dict(config),
        "rows": [asdict(row) for row in rows],
        "summary": summary(rows),
    }
