# %% [markdown]
# # 11 Reading and testing a CUDA kernel with no GPU
#
# `tinygrad_helix.cuda.host` compiles the very text of a CUDA kernel with g++ and runs it on
# NumPy arrays. That needs Linux, g++ and CUDA's headers (`pip install
# "tinygrad_helix[test-cuda]"`), but no GPU and no driver. Where they are missing, the cells
# that run a kernel do nothing and the last exercise is skipped.

# %%
import random
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

import tinygrad_helix as th
from tinygrad_helix.cuda.host import HostDevice, thread_order
from tinygrad_helix.cuda.launch import load
from tinygrad_helix.cuda.toolkit import compiler, headers, missing
from tinygrad_helix.errors import KernelError
from tinygrad_helix.tutorial import exercise, skip_if
from tinygrad_helix.viz.sketch import AMBER, BLUE, GREY, SKY, Sketch

absent = missing(compiler, headers)
print(absent or "kernels run here")

# %% [markdown]
# ## One function, run by every thread
#
# A kernel is a function that thousands of threads run. They come in blocks: `threadIdx.x`
# counts inside a block, `blockIdx.x` the blocks. To give each of n numbers a thread, launch
# ⌈n / 128⌉ blocks of 128, and let those past the end return.

# %%
SAXPY = """// x, y [n].
extern "C" __global__ void saxpy(const float* x, float* y, float a, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
"""
n, threads = 1000, 128
blocks = -(-n // threads)
assert blocks == 8 and blocks * threads - n == 24  # idle

# %% [markdown]
# `load` reads the text, and learns the shapes from the comment above the kernel. CUDA
# checks none of what follows: a kernel that gets float64 for a `float*` reads garbage. Here
# each is an error, and nothing runs.


# %%
def kernel(text, name):
    """The kernel `name` of a text in CUDA C++, for NumPy arrays."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lesson.cu"
        path.write_text(text, encoding="utf-8")
        return load(path, [name], device=HostDevice())[name]


saxpy = kernel(SAXPY, "saxpy")
x, y = np.arange(n, dtype="f4"), np.ones(n, "f4")
# float64 for float, an output with strides, n past the end
for wrong in ((x.astype("f8"), y, 2.0, n), (x, y[::2], 2.0, n), (x, y, 2.0, n + 1)):
    try:
        saxpy((blocks,), (threads,), wrong)
        raise AssertionError("an error was due")
    except KernelError as error:
        print(error)
if absent is None:
    saxpy((blocks,), (threads,), (x, y, 2.0, n))
    assert np.array_equal(y, 2 * np.arange(n) + 1)

# %% [markdown]
# ## Threads that wait for each other
#
# The threads of a block share some memory and meet at barriers, `__syncthreads()`; between
# these they run in any order. Here is a sum with Python's generators for threads and
# `yield` for the barrier. (The C++ behind `cuda.host` does the same with fibers.)


# %%
def run(thread, count, order):
    waiting = [thread(i) for i in range(count)]
    while waiting:
        random.Random(order).shuffle(waiting)
        waiting = [t for t in waiting if next(t, "done") is None]


def total(values, order, barrier=True):
    """The sum of a power of two of values, by halves."""
    tile = [0.0] * len(values)

    def thread(i):
        tile[i] = values[i]
        yield  # all have written
        by = len(values) // 2
        while by:
            if i < by:
                tile[i] += tile[i + by]  # what thread i + by wrote
            if barrier:
                yield
            by //= 2

    run(thread, len(values), order)
    return tile[0]


eight = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
assert {total(eight, order) for order in range(20)} == {36.0}
sums = {total(eight, order, barrier=False) for order in range(20)}
print("without the barrier:", sorted(sums))
assert len(sums) > 1

# %% [markdown]
# Without it the sum is right in some orders and wrong in others. A GPU runs nearly the same
# order every time, so such a bug passes all tests and waits. Run in several orders and
# compare: `thread_order` does that for CUDA's own text. `total_` lacks its last barrier.

# %%
TOTAL = """// x [64]; y [1].
extern "C" __global__ void total_(const float* x, float* y) {
    __shared__ float tile[64];
    const int i = threadIdx.x;
    tile[i] = x[i];
    __syncthreads();
    for (int by = 32; by > 0; by /= 2) {
        if (i < by) tile[i] += tile[i + by];
    }
    if (i == 0) y[0] = tile[0];
}
"""


def orders(text):
    """{order: the sum that the kernel finds of 1, 2, …, 64}."""
    found, launch = {}, kernel(text, "total_")
    for order in range(4):
        y = np.full(1, np.nan, "f4")
        with thread_order(order):
            launch((1,), (64,), (np.arange(1, 65, dtype="f4"), y))
        found[order] = float(y[0])
    return found


if absent is None:
    sums = orders(TOTAL)
    print(sums)
    assert len(set(sums.values())) > 1 and 2080 in sums.values()
    line = "if (i < by) tile[i] += tile[i + by];"
    mended = TOTAL.replace(line, line + " __syncthreads();")
    assert set(orders(mended).values()) == {2080}

# %% [markdown]
# ## The scan's own kernel
#
# Open `tinygrad_helix/cuda/kernels/scan.cu`. It begins with the formula and the NumPy lines
# that it equals. In `scan_r` a thread is a channel that walks through time; `Storage` is
# what lies in memory (bfloat16, say). `U` steps are on their way from memory at once, for
# one load takes as long as hundreds of products. Test it as every kernel here is: shapes
# that no block divides; outputs full of NaN, so that a place nobody writes shows; several
# orders; and a reference that shares no line with it.

# %%
B, T, D = 2, 37, 33
rng = np.random.default_rng(0)
a, b = (rng.uniform(-1, 1, (B, T, D)).astype("f4") for _ in range(2))
due, due_last = th.gated_scan(a.astype("f8"), b.astype("f8"))
if absent is None:
    name = "scan_r<float, 16, false>"
    scan = load("scan.cu", [name], device=HostDevice())[name]
    for order in (0, 2):
        h, last = np.full_like(a, np.nan), np.full((B, D), np.nan, "f4")
        with thread_order(order):
            scan((-(-B * D // 128),), (128,), (a, b, None, None, h, last, B * D, T, D))
        assert np.abs(h - due).max() < 1e-6 and np.abs(last - due_last).max() < 1e-6

# %% [markdown]
# A laptop does not show time, nor races between blocks, which run one after another here.
# `python -m tinygrad_helix kernels` compiles for GPUs that are not there and shows their
# registers; `kernels my.cu --run saxpy --sanitize` hunts races and stray writes.

# %%
sheet = Sketch(640, 190, "a sum by halves: eight, four, two, one, with barriers between")
for row, count in enumerate((8, 4, 2, 1)):
    top = 20 + 50 * row
    sheet.text(64, top, f"{count} add" if row else "all write", colour=BLUE, size=12)
    for i in range(count):
        words = f"{sum(eight[i::count]):g}"
        sheet.box(160 + 56 * i, top, words, width=50, fill=AMBER if row else SKY)
    if row:
        sheet.line([(130, top - 25), (585, top - 25)], colour=GREY, dashed=True)
        sheet.text(64, top - 25, "__syncthreads()", size=11, colour=GREY)
sheet.save("figures/11_cuda_on_a_laptop.svg")

# %% [markdown]
# ## Exercises
#
# **1.** Write thread i of n, a generator: it puts values[i] in tile[i], and then in out[i]
# what thread n-1-i put in tile, in any order of threads.


# %%
def turn(values, tile, out, i):
    ### BEGIN SOLUTION
    tile[i] = values[i]
    yield
    out[i] = tile[len(values) - 1 - i]
    ### END SOLUTION


with exercise(1):
    for order in range(8):
        both = [0.0] * 8, [0.0] * 8
        run(partial(turn, eight, *both), 8, order)
        assert both[1] == eight[::-1], f"in order {order} out is {both[1]}"

# %% [markdown]
# **2.** Write the scan h_t = a_t·h_{t-1} + b_t, one thread a channel, h_{-1} = h0.

# %%
HEAD = """// a, b, h [B, T, D]; h0 [B, D].
extern "C" __global__ void walk(const float* a, const float* b, const float* h0,
                                float* h, int B, int T, int D)"""


def walk():
    """The body, in braces, which comes after HEAD."""
    ### BEGIN SOLUTION
    return """ {
    const int channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= B * D) return;
    float state = h0[channel];
    for (int t = 0; t < T; t++) {
        const int i = (channel / D * T + t) * D + channel % D;
        state = a[i] * state + b[i];
        h[i] = state;
    }
}
"""
    ### END SOLUTION


with exercise(2):
    skip_if(absent)
    h0, h = rng.standard_normal((B, D)).astype("f4"), np.full((B, T, D), np.nan, "f4")
    kernel(HEAD + walk(), "walk")((2,), (64,), (a, b, h0, h, B, T, D))
    error = np.abs(h - th.gated_scan(a, b, h0)[0]).max()
    assert error < 1e-6, f"largest difference {error}"
