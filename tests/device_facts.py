"""What the package takes for granted about CuPy, cuBLAS and the driver, fact by fact.

Each was read in CuPy's source or in CUDA's documents before it was seen on a GPU. `FACTS`
has them in the order in which they are tried, those last that may spoil the device.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from device_check import Lab, Skip

GARBAGE = 'extern "C" __global__ void put(float x, float* y) { y[0] = x; }'
DENORMAL = (
    'extern "C" __global__ void half(const float* x, float* y) { y[0] = x[0] * 0.5f; }'
)
LARGE = (
    'extern "C" __global__ void large(float* y) '
    "{ extern __shared__ float s[]; s[threadIdx.x] = 1; y[threadIdx.x] = s[threadIdx.x]; }"
)


class Fact(NamedTuple):
    name: str
    expected: str
    find: Callable[[Lab], object]  # what is seen; as text it has to be `expected`
    needs_gpu: bool = True


FACTS: list[Fact] = []


def fact(name: str, expected: str, *, needs_gpu: bool = True) -> Callable[[Any], Any]:
    def noted(find: Callable[[Lab], object]) -> Callable[[Lab], object]:
        FACTS.append(Fact(name, expected, find, needs_gpu))
        return find

    return noted


def facts(lab: Lab) -> None:
    """The stage: each fact, expected and seen."""
    for f in FACTS:
        with lab.part(f.name, f.expected):
            if f.needs_gpu and not lab.gpu:
                raise Skip("needs a GPU")
            seen = str(f.find(lab))
            lab.row(f.name, seen, seen == f.expected, f.expected)


def raised(call: Callable[[], Any], words: str) -> str:
    """The error's class, and "as expected" if its text has the words."""
    try:
        call()
    except Exception as error:
        if words in str(error):
            return f"{type(error).__name__}: …{words}…"
        return f"{type(error).__name__}: {error}"
    return "no error"


def beside(lab: Lab) -> Any:
    """A stream of its own, after all that was launched before."""
    lab.device.synchronize()
    return lab.xp.cuda.Stream(non_blocking=True)


@contextlib.contextmanager
def capturing(lab: Lab):
    """A stream that captures; what is raised inside comes out, and the stream is whole."""
    stream = beside(lab)
    with stream:
        stream.begin_capture()
        try:
            yield stream
        finally:
            with contextlib.suppress(Exception):
                stream.end_capture()


def kernel(lab: Lab, text: str, name: str) -> Any:
    return lab.xp.RawModule(code=text).get_function(name)


# --- arrays


@fact("argsort of equal keys keeps their order", "True")
def stable(lab: Lab) -> object:
    keys = lab.xp.asarray(np.arange(4000) % 3)
    order = lab.xp.argsort(keys).get()
    return bool(np.array_equal(order, np.argsort(np.arange(4000) % 3, kind="stable")))


@fact("scatter_add with repeated indices, ten times the same bits", "True", needs_gpu=False)
def scatter(lab: Lab) -> object:
    rng = np.random.default_rng(0)
    rows = lab.xp.asarray(rng.integers(0, 50, 5000))
    values = lab.xp.asarray(rng.standard_normal((5000, 8)).astype("f4"))
    found = set()
    for _ in range(10):
        target = lab.xp.zeros((50, 8), "float32")
        lab.device.scatter_add(target, rows, values)
        found.add(target.get().tobytes())
    return len(found) == 1


@fact("MemoryHook on 100 bytes says", "size 100, mem_size 512", needs_gpu=False)
def pool(lab: Lab) -> object:
    seen = []

    class Hook(lab.xp.cuda.MemoryHook):
        name = "device_check"

        def malloc_postprocess(self, **about: Any) -> None:
            seen.append((about["size"], about["mem_size"], about["mem_ptr"] != 0))

    with Hook():
        lab.xp.empty(100, "int8")
    return f"size {seen[0][0]}, mem_size {seen[0][1]}"


@fact("an index past the end is no error in CuPy", "2")
def wraps(lab: Lab) -> object:
    return int(lab.xp.arange(3)[lab.xp.asarray([5])][0])


@fact("add.at does not take int64", "an error")
def add_at(lab: Lab) -> object:
    xp = lab.xp
    try:
        xp.add.at(xp.zeros(3, "int64"), xp.asarray([0, 0]), xp.ones(2, "int64"))
    except Exception:
        return "an error"
    return "it does"


@fact("bfloat16 from float32 rounds as ml_dtypes does", "True")
def bfloat16(lab: Lab) -> object:
    from ml_dtypes import bfloat16

    x = np.random.default_rng(0).standard_normal(10_000).astype("f4")
    cast = lab.xp.asarray(x).astype(bfloat16)
    return bool(np.array_equal(cast.get().view("u2"), x.astype(bfloat16).view("u2")))


@fact("bfloat16: add, multiply, exp and sqrt run", "True")
def bfloat16_ufuncs(lab: Lab) -> object:
    from ml_dtypes import bfloat16

    xp = lab.xp
    x = xp.asarray(np.ones(8, bfloat16))
    return all(y.dtype == bfloat16 for y in (x + x, x * x, xp.exp(x), xp.sqrt(x)))


@fact("float32 products are not TF32's", "True")
def tf32(lab: Lab) -> object:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((256, 256)).astype("f4") for _ in range(2))
    due = a.astype("f8") @ b.astype("f8")
    worst = 0.0
    for product in (lab.xp.matmul, lab.device.blas.matmul):
        got = product(lab.xp.asarray(a), lab.xp.asarray(b)).get()
        worst = max(worst, float(np.abs(got - due).max() / np.abs(due).max()))
    return worst < 3e-6  # TF32 has 10 bits: 5e-4


@fact("3-D bfloat16 matmul of CuPy is right", "True")
def deep_bfloat16(lab: Lab) -> object:
    from ml_dtypes import bfloat16

    a = np.random.default_rng(0).standard_normal((4, 64, 64)).astype(bfloat16)
    due = a.astype("f4") @ a.astype("f4")
    x = lab.xp.asarray(a)
    got = lab.xp.matmul(x, x).get().astype("f4")
    return bool(np.abs(got - due).max() < 3e-2 * np.abs(due).max())


@fact("DLPack to PyTorch and back shares memory", "True")
def dlpack(lab: Lab) -> object:
    import torch

    x = lab.xp.zeros(3, "float32")
    torch.from_dlpack(x).fill_(1)
    torch.cuda.synchronize()
    return float(x.sum()) == 3.0


# --- kernels


@fact("a Python float for a float parameter is read as garbage", "0.0")
def garbage(lab: Lab) -> object:
    y = lab.xp.full(1, 7, "float32")
    kernel(lab, GARBAGE, "put")((1,), (1,), (1.0, y))  # the lower half of the double 1.0
    return float(y[0])


@fact("denormals of float32 are flushed (-ftz=true)", "0.0")
def flushed(lab: Lab) -> object:
    x, y = lab.xp.asarray(np.array([2e-38], "f4")), lab.xp.ones(1, "float32")
    kernel(lab, DENORMAL, "half")((1,), (1,), (x, y))
    return float(y[0])


@fact("more than 48 KB of shared memory only when asked for", "error, then 1.0")
def shared(lab: Lab) -> object:
    y = lab.xp.zeros(32, "float32")
    function = kernel(lab, LARGE, "large")
    try:
        function((1,), (32,), (y,), shared_mem=64 << 10)
        return "no error"
    except Exception:
        function.max_dynamic_shared_size_bytes = 64 << 10
        function((1,), (32,), (y,), shared_mem=64 << 10)
        return f"error, then {float(y.min())}"


@fact("grid.y ends at 65,535", "an error")
def grid(lab: Lab) -> object:
    y = lab.xp.zeros(1, "float32")
    try:
        kernel(lab, GARBAGE, "put")((1, 65_536), (1,), (np.float32(1), y))
        lab.device.synchronize()
    except Exception:
        return "an error"
    return "it launches"


# --- capture


@fact("a graph replays a captured kernel", "2.0")
def graph(lab: Lab) -> object:
    xp = lab.xp
    x, y = xp.ones(4, "float32"), xp.zeros(4, "float32")
    stream = beside(lab)
    with stream:
        xp.add(x, x, out=y)
        stream.synchronize()
        stream.begin_capture()
        xp.add(x, x, out=y)
        made = stream.end_capture()
        y.fill(0)
        made.launch(stream)
        stream.synchronize()
    return float(y.min())


@fact("after p = p.copy() a replay still writes to the old buffer", "old 2.0, new 1.0")
def pointers(lab: Lab) -> object:
    xp = lab.xp
    p = xp.ones(4, "float32")
    stream = beside(lab)
    with stream:
        stream.begin_capture()
        xp.add(p, xp.float32(1), out=p)
        made = stream.end_capture()
        old, p = p, p.copy()
        made.launch(stream)
        stream.synchronize()
    return f"old {float(old[0])}, new {float(p[0])}"


@fact(
    "CuPy's matmul while its stream captures",
    "NotImplementedError: …cuBLAS API during stream capture…",
)
def cupy_matmul(lab: Lab) -> object:
    a = lab.xp.ones((8, 8), "float32")
    with capturing(lab):
        return raised(lambda: a @ a, "cuBLAS API during stream capture")


@fact("our own cuBLAS is captured and replayed", "8.0")
def own_matmul(lab: Lab) -> object:
    xp = lab.xp
    a, out = xp.ones((8, 8), "float32"), xp.zeros((8, 8), "float32")
    stream = beside(lab)
    with stream:
        lab.device.blas.matmul(a, a, out)
        stream.synchronize()
        stream.begin_capture()
        lab.device.blas.matmul(a, a, out)
        made = stream.end_capture()
        out.fill(0)
        made.launch(stream)
        stream.synchronize()
    return float(out.min())


@fact("a copy to the host while capturing", "RuntimeError: …is capturing…")
def host_copy(lab: Lab) -> object:
    x = lab.xp.ones(4, "float32")
    with capturing(lab):
        return raised(lambda: x.get(), "is capturing")


@fact("synchronizing a stream that captures", "an error")
def synchronized(lab: Lab) -> object:
    with capturing(lab) as stream:
        return "no error" if raised(stream.synchronize, "") == "no error" else "an error"


@fact("kernels without local memory, within their files' registers", "all")
def registers(lab: Lab) -> object:
    from tinygrad_helix.cuda.source import KERNELS, read_source

    over, count = [], 0
    for path in sorted(KERNELS.glob("*.cu")):
        source = read_source(path.name)
        names = [n for n in source.expressions if "<" not in n or "<float" in n]
        made = lab.xp.RawModule(code=source.text, name_expressions=names)
        for name in names:
            function = made.get_function(name)
            budget = source.budgets.get(name)
            count += 1
            if function.local_size_bytes or (budget and function.num_regs > budget):
                over.append(f"{name} {function.num_regs} registers")
    return ", ".join(over[:4]) or ("all" if count else "none")
