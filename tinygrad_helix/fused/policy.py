"""What the fused HELIX block keeps for its backward pass, and what that costs.

A *policy* is a set of the arrays that the forward pass makes. What the backward pass
reads and the policy does not keep is rebuilt from what it does keep, by the one table
`VALUES`. From that table follow the bytes of a call, its extra FLOPs, and the set that a
byte budget buys. Nothing here computes with arrays.

FLOPs are counted as the formulas are written: a product of [n, k] and [k, m] is 2·n·k·m;
elementwise, each +, -, ·, /, square and exp of an element is one (a sigmoid is four: -z,
exp, 1 + ·, 1 / ·), and so is each element that a sum takes in. Work on single numbers a
row (mean, eps, square root) is left out.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

from ..errors import HelixError

__all__ = [
    "INPUTS", "KEEPABLE", "POLICIES", "VALUES", "WEIGHTS", "Budget", "Call", "Keep", "Plan",
    "Policy", "Value", "checked", "extra_flops", "kept", "plan", "resolve", "wanted_names",
]  # fmt: skip

WEIGHTS = ("wa", "wb", "wo", "wf1", "wf2", "g1", "g2", "g3", "g4")
INPUTS = ("x", *WEIGHTS, "h0", "reset")


@dataclass(frozen=True)
class Value:
    """One array of the forward pass: `width`·D numbers a token, made from `sources`.

    Making it again costs `gemm`·D² + `work`·D FLOPs a token.
    """

    width: int
    sources: tuple[str, ...]
    gemm: int
    work: int


# In the order in which the forward pass makes them. Those that are not KEEPABLE cost one
# pass over what they are made from; the backward pass needs them on the way.
VALUES: dict[str, Value] = {
    "x": Value(1, (), 0, 0),
    "rms1": Value(1, ("x",), 0, 3),  # rms(x)
    "a": Value(1, ("rms1", "g1", "wa"), 2, 5),  # sigmoid(rms1·g1 wa' + bias)
    "h": Value(1, ("a", "rms1", "g1", "wb", "h0", "reset"), 2, 2),
    "s": Value(1, ("h", "g2"), 0, 5),  # sigmoid(h·g2)
    "s2": Value(1, ("s",), 0, 1),  # h·g2·s
    "out1": Value(1, ("x", "s2", "wo"), 2, 1),  # x + s2 wo
    "rms2": Value(1, ("out1",), 0, 3),  # rms(out1)
    "xn2": Value(1, ("rms2", "g3"), 0, 1),  # rms2·g3
    "f1": Value(2, ("xn2", "wf1"), 4, 0),  # xn2 wf1
    "f2": Value(1, ("f1", "wf2"), 4, 10),  # silu(f1) wf2
}
KEEPABLE = ("x", "a", "h", "s2", "out1", "xn2", "f1", "f2")


class Keep:
    """Keep exactly these arrays: x, and any of a, h, s2, out1, xn2, f1, f2.

    What is missing is rebuilt from what is there when the backward pass wants it.

    >>> from tinygrad_helix.fused.policy import Keep
    >>> Keep("h", "x")
    keep(x,h)
    >>> Keep("h", "x") == Keep("x", "h")
    True
    """

    __slots__ = ("names",)

    def __init__(self, *names: str) -> None:
        unknown = [name for name in names if name not in KEEPABLE]
        if unknown:
            raise HelixError(
                f"Keep got {', '.join(map(repr, unknown))}, which the fused HELIX block "
                f"cannot keep. It can keep {', '.join(KEEPABLE)}."
            )
        if "x" not in names:
            raise HelixError(
                f"Keep({', '.join(map(repr, names))}) leaves out x, from which everything "
                "else is rebuilt. Add 'x' to the set."
            )
        self.names: tuple[str, ...] = tuple(n for n in KEEPABLE if n in names)

    @property
    def name(self) -> str:
        """The set as tables show it: `keep(x,a,h)`."""
        return f"keep({','.join(self.names)})"

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keep) and self.names == other.names

    def __hash__(self) -> int:
        return hash((Keep, self.names))


_UNITS = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgt", 1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}


class Budget:
    """Save at most so many bytes a call: an int, or text such as "64MB" or "64MiB".

    Of the sets that fit, the one with the fewest extra FLOPs is taken, and of those with
    equally few the smallest. MB is 10⁶ bytes, MiB is 2²⁰.

    >>> from tinygrad_helix.fused.policy import Budget
    >>> Budget("64MB").bytes
    64000000
    """

    __slots__ = ("bytes",)

    def __init__(self, limit: int | str) -> None:
        size: int | None = None
        if isinstance(limit, int) and not isinstance(limit, bool):
            size = limit
        elif isinstance(limit, str):
            parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", limit.lower())
            if parts is not None and parts[2] in _UNITS:
                size = int(float(parts[1]) * _UNITS[parts[2]])
        if size is None or size < 0:
            raise HelixError(
                f"Budget got {limit!r}, which is no number of bytes. Give an int ≥ 0, or "
                "text such as '64MB' or '64MiB'."
            )
        self.bytes = size

    @property
    def name(self) -> str:
        """As tables show it: `budget(64000000)`."""
        return f"budget({self.bytes})"

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Budget) and self.bytes == other.bytes

    def __hash__(self) -> int:
        return hash((Budget, self.bytes))


Policy = str | Keep | Budget | None

# By the numbers kept a token, in D. keep6 repeats elementwise work alone.
POLICIES: dict[str, Keep] = {
    "keep9": Keep("x", "a", "h", "s2", "out1", "xn2", "f1", "f2"),
    "keep6": Keep("x", "a", "h", "out1", "f1"),
    "keep4": Keep("x", "a", "h", "out1"),
    "keep3": Keep("x", "a", "h"),
    "keep2": Keep("x", "h"),
    "keep1": Keep("x"),
}
POLICIES |= {
    "full": POLICIES["keep9"],
    "lean": POLICIES["keep6"],
    "checkpoint": POLICIES["keep1"],
}


# --- what the backward pass reads


@dataclass(frozen=True)
class Plan:
    """Which steps of the backward pass run for the wanted gradients, and what they read.

    The pass goes from y down to x and stops above everything that nobody wants.
    """

    pre: bool  # the cotangent of f1
    out1: bool  # of out1
    hidden: bool  # of h·g2
    scan: bool  # the scan backward
    gate: bool  # the cotangent of xn wa' + bias
    inner: bool  # of xn wb
    dxn2: bool  # of xn2
    dxn: bool  # of xn
    gg4_from_f2: bool  # gg4 = S(gy·f2)
    gg4_from_m: bool  # gg4 = column sums of wf2·M, M = silu(f1)^T gy
    gg3_by_rows: bool  # gg3 = S(dxn2·rms2), not from wf1 and rms2^T dpre
    gg1_by_rows: bool  # gg1 = S(dxn·rms1), not from wa, wb and rms1^T [gua|gub]
    scratch: tuple[str, ...]  # memory that the pass needs for a tile
    made: frozenset[str]  # arrays of VALUES that are read without being kept
    reads: frozenset[str]  # kept arrays and inputs that are read


@lru_cache(maxsize=4096)
def plan(wanted: frozenset[str], keep: frozenset[str]) -> Plan:
    """The plan for the gradients `wanted` (names of INPUTS) from the arrays `keep`."""

    def any_of(*names: str) -> bool:
        return not wanted.isdisjoint(names)

    gate = any_of("x", "g1", "wa")
    inner = any_of("x", "g1", "wb")
    scan = gate or inner or any_of("h0")
    hidden = scan or any_of("g2")
    out1 = hidden or any_of("wo")
    pre = out1 or any_of("wf1", "g3")

    # The gains' gradients come free with the products for the weights beside them, as
    # sums over small matrices, and by rows where those products are not wanted.
    gg4_from_f2 = any_of("g4") and "f2" in keep
    gg4_from_m = any_of("g4") and not gg4_from_f2
    gg3_by_rows = any_of("g3") and not (any_of("wf1") and "xn2" not in keep)
    gg1_by_rows = any_of("g1") and not (any_of("wa") and any_of("wb"))
    dxn2 = out1 or gg3_by_rows
    dxn = any_of("x") or gg1_by_rows

    direct: set[str] = set()
    if gg4_from_f2:
        direct |= {"f2"}
    if any_of("wf2"):
        direct |= {"f1", "g4"}
    if gg4_from_m:
        direct |= {"f1", "wf2"}
    if pre:
        direct |= {"f1", "wf2", "g4"}
    if any_of("wf1"):
        direct |= {"xn2"}
    if any_of("g3"):
        direct |= {"rms2", "wf1"}
    if dxn2:
        direct |= {"wf1"}
    if out1:
        direct |= {"rms2", "g3"}
    if any_of("wo"):
        direct |= {"s2"}
    if hidden:
        direct |= {"s", "wo"}
    if scan:
        direct |= {"a", "reset"}
    if gate:
        direct |= {"h0"}
    if any_of("wa", "wb"):
        direct |= {"rms1", "g1"}
    if any_of("g1"):
        direct |= {"rms1", "wa", "wb"}
    if any_of("x"):
        direct |= {"rms1", "g1", "wa", "wb"}

    scratch = ["gy", "wide1", "product"]
    if pre:
        scratch += ["wide2", "rms2", "dout1"]
    if gate or inner:
        scratch += ["x"]

    made: set[str] = set()
    reads: set[str] = set()
    pending = list(direct)
    while pending:
        name = pending.pop()
        if name in keep or name not in VALUES:
            reads.add(name)
        elif name not in made:
            made.add(name)
            pending.extend(VALUES[name].sources)
    return Plan(
        pre, out1, hidden, scan, gate, inner, dxn2, dxn, gg4_from_f2, gg4_from_m,
        gg3_by_rows, gg1_by_rows, tuple(scratch), frozenset(made), frozenset(reads),
    )  # fmt: skip


# --- what a call keeps, and what it costs


@dataclass(frozen=True)
class Call:
    """All that bytes and FLOPs of one call depend on.

    `wanted` names the inputs that want a gradient; `h0` and `reset` say whether there is
    an initial state and a reset mask.
    """

    shape: tuple[int, int, int]  # B, T, D
    itemsize: int
    wanted: frozenset[str]
    h0: bool = False
    reset: bool = False

    @property
    def rows(self) -> int:
        return self.shape[0] * self.shape[1]


def kept(call: Call, keep: Iterable[str]) -> dict[str, int]:
    """{name: bytes} of the arrays that a call keeps under the set `keep`.

    An array that no wanted gradient reads is not kept; so h0 and the reset mask too are
    kept only where they are read.
    """
    B, _, D = call.shape
    keep = frozenset(keep)
    reads = plan(call.wanted, keep).reads
    saved = {
        name: VALUES[name].width * call.rows * D * call.itemsize
        for name in KEEPABLE
        if name in keep and name in reads
    }
    if call.h0 and "h0" in reads:
        saved["h0"] = B * D * call.itemsize
    if call.reset and "reset" in reads:
        saved["reset"] = call.rows
    return saved


def extra_flops(call: Call, keep: Iterable[str]) -> int:
    """FLOPs of the backward pass that rebuild what the set `keep` does not hold."""
    D = call.shape[2]
    made = plan(call.wanted, frozenset(keep)).made
    always = plan(call.wanted, frozenset(KEEPABLE)).made
    return call.rows * sum(
        VALUES[name].gemm * D * D + VALUES[name].work * D for name in made - always
    )


@lru_cache(maxsize=1024)
def _best(call: Call, limit: int) -> tuple[str, ...]:
    """The set with the fewest extra FLOPs, then bytes, that saves at most `limit`."""
    optional = KEEPABLE[1:]
    sets = [
        ("x", *names)
        for size in range(len(optional) + 1)
        for names in combinations(optional, size)
    ]
    costs = {keep: sum(kept(call, keep).values()) for keep in sets}
    fitting = [keep for keep in sets if costs[keep] <= limit]
    if not fitting:
        smallest = min(sets, key=lambda keep: costs[keep])
        raise HelixError(
            f"helix_block of shape {call.shape} cannot save as little as {limit} bytes: "
            f"the smallest set, {Keep(*smallest).name}, takes {costs[smallest]}. Give a "
            f"Budget of at least {costs[smallest]}."
        )
    return min(fitting, key=lambda keep: (extra_flops(call, keep), costs[keep]))


def checked(policy: Policy) -> Keep | Budget:
    """What a policy means: None is lean, a name is looked up in POLICIES."""
    if isinstance(policy, (Keep, Budget)):
        return policy
    if policy is None or (isinstance(policy, str) and policy in POLICIES):
        return POLICIES[policy or "lean"]
    raise HelixError(
        f"helix_block got policy={policy!r}. Valid are {', '.join(map(repr, POLICIES))}, "
        "Keep('x', ...) and Budget(bytes); on the command line keep(x,...) and budget(4MB)."
    )


def resolve(policy: Policy, call: Call) -> tuple[str, ...]:
    """The set of arrays that `policy` means for `call`, in the order of KEEPABLE."""
    policy = checked(policy)
    return policy.names if isinstance(policy, Keep) else _best(call, policy.bytes)


def wanted_names(needs: Iterable[Any]) -> frozenset[str]:
    """The names of the inputs whose entry in `needs` (in the order of INPUTS) is true."""
    return frozenset(n for n, need in zip(INPUTS, needs, strict=False) if need)
