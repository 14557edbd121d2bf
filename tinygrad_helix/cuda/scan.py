"""The gated scan and its gradient on CUDA, by the raw kernels of kernels/scan.cu.

Way R gives each channel a thread, way C cuts time into chunks and takes three launches;
`plan` says which, by the shape alone: the same shape takes the same way everywhere, so that
results do not depend on the machine. Both are deterministic. float32 and float64 are
computed in themselves, 16-bit floats in float32, two neighbouring channels per thread where
D is even. (bfloat16 arrays too, which no Tensor holds yet.) What is saved is what the ops
save; way C needs 2·B·chunks·D values (and with a reset B·chunks bytes) of workspace for the
length of a call, about 1 MiB in float32.
"""

import weakref
from typing import Any, NamedTuple

from ..backend import backend_of
from ..kernels import register_kernel
from ..ops.scan import GatedScan, GatedScanGrad
from .launch import Module, load
from .sizes import BLOCK, ceil_div, chunks, dtypes
from .source import read_source

__all__ = ["CudaGatedScan", "CudaGatedScanGrad", "Plan", "plan"]

_FILE = "scan.cu"

# The type in the kernels of one channel and of two, and the steps that a thread of way R
# has on their way from memory: few where there are many channels, more where each has to
# do for several. Of float64 half as many, which are as many bytes.
_STORAGE = {
    "float32": ("float", "float", 16, 32),
    "float64": ("double", "double", 8, 16),
    "float16": ("__half", "__half2", 16, 32),
    "bfloat16": ("__nv_bfloat16", "__nv_bfloat162", 16, 32),
}

# About 3 MB have to be on their way from an H200's memory for its full rate (4.3 TB/s
# times 0.7 us, computed and not measured). 32 steps of two float32 are 256 bytes a channel:
# those of 12,288 channels do. With 16 steps twice as many do, and a third more leaves room
# for the instructions between.
_ENOUGH = 12_288
_MANY = 32_768

_modules: weakref.WeakKeyDictionary[Any, dict[tuple[str, bool], Module]] = (
    weakref.WeakKeyDictionary()
)


class Plan(NamedTuple):
    """How a scan is launched: uncut by way R, in several chunks by way C."""

    storage: str  # the type in the kernels
    lanes: int  # channels of a thread
    ahead: int  # steps on their way from memory in way R, forward
    ahead_back: int  # and backward, where three arrays are read
    chunks: int
    length: int  # steps of a chunk; the last may have fewer


def plan(B: int, T: int, D: int, dtype: Any) -> Plan:
    """The way for a scan over [B, T, D] of `dtype`, none of them 0."""
    one, two, few, more = _STORAGE[dtype.name]
    lanes = 2 if one != two and D % 2 == 0 else 1
    channels = B * D
    count, length = chunks(channels, T, _ENOUGH)
    ahead = few if channels >= _MANY else more
    return Plan(two if lanes == 2 else one, lanes, ahead, few, count, length)


class _Scan:
    """The launches of one call over [B, T, D], with or without a reset [B, T]."""

    def __init__(self, a: Any, reset: Any) -> None:
        self.device = backend_of(a)
        self.xp = self.device.xp
        self.shape = B, T, D = a.shape
        self.dtype = a.dtype
        self.plan = plan(B, T, D, a.dtype)
        self.width = D // self.plan.lanes
        self.channels = B * self.width
        self.pairs = self.channels * self.plan.chunks
        self.reset = self.ready(reset)

    def ready(self, x: Any) -> Any:
        """`x` in C order, which each of several launches would make of it for itself."""
        return None if x is None else self.xp.ascontiguousarray(x)

    def empty(self, *shape: int, dtype: Any = None) -> Any:
        return self.xp.empty(shape, dtype or self.dtype)

    def launch(self, name: str, choices: tuple[Any, ...], threads: int, *args: Any) -> None:
        """The instance of kernel `name` for this storage and `choices`."""
        words = [str(c).lower() for c in (self.plan.storage, *choices)]  # True is true
        kernel = self.module[f"{name}<{','.join(words)}>"]
        kernel((ceil_div(threads, BLOCK),), (BLOCK,), args)

    @property
    def module(self) -> Module:
        """The kernels of this storage and way, which are compiled together."""
        key = self.plan.storage, self.plan.chunks > 1
        modules = _modules.setdefault(self.device, {})
        if key not in modules:
            mine = [
                e
                for e in read_source(_FILE).expressions
                if f"<{key[0]}," in e and ("_c_" in e) == key[1]
            ]
            modules[key] = load(_FILE, mine, device=self.device)
        return modules[key]

    def forward(self, a: Any, b: Any, h0: Any) -> tuple[Any, Any]:
        """h [B, T, D] and last [B, D]."""
        (B, T, D), cut = self.shape, self.reset is not None
        a, b, h0 = map(self.ready, (a, b, h0))
        h, last = self.empty(B, T, D), self.empty(B, D)
        if self.plan.chunks == 1:
            choices = (self.plan.ahead, cut)
            args = (a, b, h0, self.reset, h, last, self.channels, T, self.width)
            self.launch("scan_r", choices, self.channels, *args)
            return h, last
        carries = self.carries("scan_c_summarize", (a, b), h0, back=False)
        args = (a, b, self.reset, carries, h, last, *self.sizes)
        self.launch("scan_c_apply", (cut,), self.pairs, *args)
        return h, last

    def backward(
        self, dh: Any, dlast: Any, a: Any, h: Any, h0: Any, wants: tuple[bool, bool]
    ) -> tuple[Any, Any, Any]:
        """da, g [B, T, D] and dh0 [B, D]; None for da or dh0 that is not wanted."""
        (B, T, D), cut = self.shape, self.reset is not None
        dh, dlast, a = map(self.ready, (dh, dlast, a))
        h, h0 = map(self.ready, (h, h0)) if wants[0] else (None, None)
        g = self.empty(B, T, D)
        da = self.empty(B, T, D) if wants[0] else None
        dh0 = self.empty(B, D) if wants[1] else None
        if self.plan.chunks == 1:
            choices = (self.plan.ahead_back, cut, wants[0])
            args = (
                dh,
                dlast,
                a,
                h,
                h0,
                self.reset,
                da,
                g,
                dh0,
                self.channels,
                T,
                self.width,
            )
            self.launch("scan_grad_r", choices, self.channels, *args)
            return da, g, dh0
        carries = self.carries("scan_grad_c_summarize", (dh, a), dlast, back=True)
        args = (dh, a, h, h0, self.reset, carries, da, g, dh0, *self.sizes)
        self.launch("scan_grad_c_apply", (cut, wants[0]), self.pairs, *args)
        return da, g, dh0

    @property
    def sizes(self) -> tuple[int, ...]:
        """The last arguments of way C's kernels."""
        T = self.shape[1]
        return self.pairs, T, self.width, self.plan.length, self.plan.chunks

    def carries(self, summarize: str, scanned: Any, start: Any, *, back: bool) -> Any:
        """The carry into each chunk [B, chunks, D]: way C's first two launches."""
        (B, _, D), chunks = self.shape, self.plan.chunks
        state = "float64" if self.dtype.name == "float64" else "float32"
        products, results = (self.empty(B, chunks, D, dtype=state) for _ in range(2))
        dropped = None if self.reset is None else self.empty(B, chunks, dtype=bool)
        cut = (dropped is not None,)
        args = (*scanned, self.reset, products, results, dropped, *self.sizes)
        self.launch(summarize, cut, self.pairs, *args)
        args = (products, results, dropped, start, self.channels, self.width, chunks, back)
        self.launch("scan_c_carry", cut, self.channels, *args)
        return results


def _takes(a: Any) -> bool:
    """Whether kernels can run: there is work, and the device compiles CUDA C++."""
    return a.size > 0 and getattr(backend_of(a), "module_factory", None) is not None


@register_kernel(GatedScan, "cuda", dtypes())
class CudaGatedScan:
    """`GatedScan` by raw kernels; what has no steps or no channels is left to its body."""

    @staticmethod
    def forward(xp, a, b, h0, reset, *, needs):
        if not _takes(a):
            return NotImplemented
        h, last = _Scan(a, reset).forward(a, b, h0)
        return (h, last), {
            "a": a,
            "h": h if needs[0] else None,
            "h0": h0 if needs[0] else None,
            "reset": reset,
        }


@register_kernel(GatedScanGrad, "cuda", dtypes())
class CudaGatedScanGrad:
    """`GatedScanGrad`, the gated scan's vjp, likewise."""

    @staticmethod
    def forward(xp, dh, dlast, a, h, h0, reset, *, needs, wants):
        if not _takes(a):
            return NotImplemented
        da, g, dh0 = _Scan(a, reset).backward(dh, dlast, a, h, h0, wants)
        none = xp.empty((0,), a.dtype)
        ys = none if da is None else da, g, none if dh0 is None else dh0
        return ys, {"a": a, "h": h, "h0": h0, "reset": reset, "g": g}
