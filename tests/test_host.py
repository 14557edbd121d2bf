"""Kernels on the CPU: what is right comes out right, and what is wrong is caught.

tests/planted/bugs.cu has kernels with one bug each. A bug that is no longer caught means
that the checker is broken, not that the kernel is right.
"""

import functools
import multiprocessing
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tinygrad_helix.cuda import host
from tinygrad_helix.cuda.host import HostDevice, HostModule, module, thread_order
from tinygrad_helix.cuda.launch import load
from tinygrad_helix.cuda.source import KERNELS, read_source
from tinygrad_helix.cuda.toolkit import compiler, headers
from tinygrad_helix.errors import KernelError

pytestmark = pytest.mark.host

ROOT = Path(__file__).parents[1]
PLANTED = Path(__file__).parent / "planted"
BUGS = (PLANTED / "bugs.cu").read_text()
RIGHT = (PLANTED / "right.cu").read_text()
INSTANCES = ("scaled<double,3>", "scaled<float,1>")
MISSING = ("-DMISSING_SYNCTHREADS", "-DMISSING_SYNCWARP")
ORDERS = range(4)
i32 = np.int32


@functools.cache
def compiled(code, options=()):
    return HostModule(code, options, INSTANCES if code == RIGHT else ())


def run(code, name, grid, block, args, *, shared_mem=0, order=0, options=()):
    """Launch a kernel of `code`."""
    with thread_order(order):
        function = compiled(code, tuple(options)).get_function(name)
        function(grid, block, args, shared_mem=shared_mem)


def line_of(text):
    return next(n for n, line in enumerate(BUGS.splitlines(), 1) if text in line)


# --- what is right


@pytest.mark.parametrize("order", ORDERS)
def test_the_right_neighbours_of_the_bugs_are_right(order):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal(300).astype("f4"), np.zeros(300, "f4")
    run(BUGS, "prefix", (1,), (64,), (x, y, i32(300)), order=order)
    np.testing.assert_allclose(y, np.cumsum(x.astype("f8")), atol=1e-4)
    x, y = rng.standard_normal(64).astype("f4"), np.zeros(64, "f4")
    run(BUGS, "turn", (1,), (64,), (x, y, i32(64)), order=order)
    np.testing.assert_array_equal(y, x.reshape(2, 32)[:, ::-1].ravel())


@pytest.mark.parametrize("order", ORDERS)
def test_every_thread_of_every_block_runs_once(order):
    grid, block = (4, 3, 2), (5, 4, 3)
    y = np.zeros(np.prod(grid + block), i32)
    run(RIGHT, "where", grid, block, (y,), order=order)
    places = [np.arange(n) for n in (*grid[::-1], *block[::-1])]
    bz, by, bx, z, y_, x = np.meshgrid(*places, indexing="ij")
    wanted = x + 10 * y_ + 100 * z + 1000 * bx + 10000 * by + 100000 * bz
    np.testing.assert_array_equal(y, wanted.ravel())


def test_the_order_of_threads_is_the_one_that_was_asked_for():
    seen = []
    for order in ORDERS:
        at, y = np.zeros(1, i32), np.zeros(96, i32)
        run(RIGHT, "note", (3,), (32,), (at, y), order=order)
        assert sorted(y) == list(range(96))
        seen.append(list(y))
    assert seen[0] == list(range(96)) and seen[1] == seen[0][::-1]
    assert len({tuple(s) for s in seen}) == 4
    at, y = np.zeros(1, i32), np.zeros(96, i32)
    run(RIGHT, "note", (3,), (32,), (at, y), order=3)
    assert list(y) == seen[3]  # an order is the same each time
    assert list(y) != sorted(y)


@pytest.mark.parametrize("order", ORDERS)
def test_shuffles_and_votes(order):
    y, votes = np.zeros(448, "f4"), np.zeros(256, i32)
    run(RIGHT, "warps", (1,), (64,), (y, votes), order=order)
    i = np.arange(64)
    lane, first = i % 32, i - i % 32
    y, votes = y.reshape(-1, 64), votes.view(np.uint32).reshape(-1, 64)
    np.testing.assert_array_equal(y[0], first + 5)
    np.testing.assert_array_equal(y[1], np.where(lane < 3, i, i - 3))
    np.testing.assert_array_equal(y[2], np.where(lane > 28, i, i + 3))
    np.testing.assert_array_equal(y[3], first + (lane ^ 6))
    np.testing.assert_array_equal(y[4], np.where(lane % 8 == 7, i, i + 1))
    np.testing.assert_array_equal(y[5], i - i % 16 + 2)
    np.testing.assert_array_equal(y[6], np.where(lane % 4 == 0, i, i - 1))
    assert (votes[0] == sum(1 << n for n in range(0, 32, 3))).all()
    np.testing.assert_array_equal(votes[1], np.where(i < 32, 2, 1))
    assert (votes[2] == 107).all()
    np.testing.assert_array_equal(votes[3], np.where(lane < 8, 0xAA, 0))


def test_atomics():
    y, f, d, u = np.zeros(7, i32), np.zeros(1, "f4"), np.zeros(1), np.zeros(1, "u4")
    run(RIGHT, "atomics", (2,), (64,), (y, f, d, u), order=2)
    assert list(y) == [128, -256, 63, 0, 2**31 - 1, 7, 3]
    assert (f[0], d[0], u[0]) == (64, 32, 8)


def test_templates_and_types():
    functions = compiled(RIGHT)
    x, y = np.arange(100.0), np.zeros(100)
    functions.get_function("scaled<double,3>")((4,), (32,), (x, y, np.float64(2), i32(100)))
    np.testing.assert_array_equal(y, 2 * x + 3)
    single = functions.get_function("scaled<float, 1>")
    assert single.signature == ("const float32*", "float32*", "float32", "int32")


def test_16_bit_types_are_those_of_cuda():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.linspace(-3, 3, 32)
    half, brain, z = x.astype("f2"), x.astype(ml_dtypes.bfloat16), np.zeros(32, "f4")
    run(RIGHT, "halves", (1,), (32,), (half, brain, z))
    np.testing.assert_array_equal(z, half.astype("f4") + brain.astype("f4"))


def test_vectors_and_functions():
    x, y = np.arange(1, 129, dtype="f4"), np.zeros(32, "f4")
    run(RIGHT, "vectors", (1,), (32,), (x, y))
    np.testing.assert_array_equal(y, x.reshape(32, 4).sum(1))
    run(RIGHT, "functions", (1,), (32,), (x, y))
    x, i = x[:32].astype("f8"), np.arange(32)
    ones = np.array([bin(n).count("1") for n in i])
    wanted = 1 / np.sqrt(x) + np.exp(-x) + 2 * x + 1 + i + np.minimum(x, 2) + 2 * x
    np.testing.assert_allclose(y, wanted + ones + 31, rtol=1e-6)


MORE = r"""
#include <math_constants.h>
__global__ void numbers(const float* x, float* y) {
    y[0] = max(x[0], 0.f); y[1] = min(NAN, 1.0); y[2] = max(3, 4u); y[3] = CUDART_INF_F;
    y[4] = __float2int_rn(2.5f); y[5] = __float2int_rz(-1e20f);
    y[6] = __float2uint_ru(1.2f); y[7] = __float2int_rn(NAN);
    y[8] = __half2float(hexp(__half(1.f)));
    y[9] = __bfloat162float(hrcp(__nv_bfloat16(2.f)));
    y[10] = sinpif(0.5f); y[11] = norm3df(1, 2, 2); y[12] = normcdff(0.f);
    y[13] = clock64() > 0; atomicAdd((float2*)(y + 14), make_float2(1, 2));
}
__global__ void lanes(unsigned* y) {
    const unsigned i = threadIdx.x, every = 0xffffffffu;
    y[i] = __match_any_sync(every, i / 8);
    y[32 + i] = __reduce_max_sync(every, i);
    y[64 + i] = i < 3 ? __reduce_add_sync(7u, i + 1) : 0;
}
__global__ void asserts(float* y, int n) { y[0] = 1; assert(n > 3); y[1] = 2; }
"""


def test_what_numbers_become_on_the_device():
    y = np.zeros(16, "f4")
    run(MORE, "numbers", (1,), (1,), (np.full(1, np.nan, "f4"), y))
    wanted = [0, 1, 4, np.inf, 2, -(2**31), 2, 0, np.e, 0.5, 1, 3, 0.5, 1, 1, 2]
    np.testing.assert_allclose(y, np.array(wanted, "f4"), rtol=1e-3)


@pytest.mark.parametrize("order", ORDERS)
def test_lanes_that_match_and_add_up(order):
    y = np.zeros(96, "u4")
    run(MORE, "lanes", (1,), (32,), (y,), order=order)
    i = np.arange(32)
    np.testing.assert_array_equal(y[:32], 0xFF << (i // 8 * 8))
    assert (y[32:64] == 31).all()
    np.testing.assert_array_equal(y[64:], np.where(i < 3, 6, 0))


def test_an_assertion_ends_the_launch():
    y = np.zeros(2, "f4")
    with pytest.raises(KernelError, match=r"assert\(n > 3\) fails: block \(0,0,0\)"):
        run(MORE, "asserts", (1,), (4,), (y, i32(3)))
    assert list(y) == [1, 0]
    run(MORE, "asserts", (1,), (4,), (y, i32(4)))
    assert list(y) == [1, 2]


def test_dynamic_shared_memory_is_not_a_number_at_first():
    y = np.zeros(64, "f4")
    run(BUGS, "unset_shared", (1,), (64,), (y,), shared_mem=256)
    assert np.isnan(y).all()


def test_many_blocks_are_quick_enough_and_all_run():
    x, y = np.ones(70_000, "f4"), np.zeros(70_000, "f4")
    run(RIGHT, "copy", (70_000,), (128,), (x, y))
    assert y.all()


def test_two_modules_do_not_share_a_templates_shared_memory():
    code = """template <class T> __global__ void f(T* y) {{
        __shared__ T tile[{n}]; tile[threadIdx.x] = {n}; __syncthreads();
        y[threadIdx.x] = tile[threadIdx.x]; }}"""
    small, large = (
        HostModule(code.format(n=n), (), ["f<float>"]).get_function("f<float>")
        for n in (32, 512)
    )
    for f, n in ((small, 32), (large, 512), (small, 32)):
        y = np.zeros(n, "f4")
        f((1,), (n,), (y,))
        assert (y == n).all()


def test_concurrent_threads_of_python_take_turns():
    from concurrent.futures import ThreadPoolExecutor

    function = compiled(BUGS).get_function("prefix")

    def once(seed):
        x, y = np.full(300, seed, "f4"), np.zeros(300, "f4")
        function((1,), (64,), (x, y, i32(300)))
        return (y == np.cumsum(x)).all()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(once, range(40)))


# --- bugs that show in the results


def prefix_is_right(order, options):
    x, y = np.ones(300, "f4"), np.zeros(300, "f4")
    run(BUGS, "prefix", (1,), (64,), (x, y, i32(300)), order=order, options=options)
    return (y == np.arange(1, 301)).all()


def test_a_missing_barrier_depends_on_the_order():
    right = [prefix_is_right(order, MISSING) for order in ORDERS]
    assert right == [True, False, False, False]  # the first order alone would be silent


def test_a_missing_syncwarp_depends_on_the_order():
    right = []
    for order in ORDERS:
        # other values each time: the shared array still has those of the last launch
        x, y = np.arange(64, dtype="f4") + 64 * order, np.zeros(64, "f4")
        run(BUGS, "turn", (1,), (64,), (x, y, i32(64)), order=order, options=MISSING)
        right.append((y == x.reshape(2, 32)[:, ::-1].ravel()).all())
    assert not any(right)


# --- bugs that end the launch


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("name", "args", "what"),
    [
        ("divergent_barrier", (), "not every thread of the block reaches this barrier"),
        (
            "barrier_after_return",
            (i32(10),),
            "not every thread of the block reaches this barrier",
        ),
        ("absent_lanes", (), "deadlock: a collective waits for threads that never come"),
        ("outside_the_mask", (), "a shuffle reads a lane that is not in its mask"),
        ("not_in_its_mask", (), "a thread is not in the mask of its own warp collective"),
    ],
)
def test_collectives_that_cannot_work(order, name, args, what):
    first = line_of(f"void {name}(")
    with pytest.raises(KernelError) as error:
        run(BUGS, name, (3,), (32,), (np.zeros(64, "f4"), *args), order=order)
    text = str(error.value)
    assert f"{name}: {what}" in text and ": block (" in text and ", thread (" in text
    line = int(text.split("kernel.cu:")[1].split(".")[0])
    assert first <= line <= first + 5
    # and the module works on: what was left waiting is gone
    test_the_right_neighbours_of_the_bugs_are_right(order)


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (
            lambda x, y: (x, y),
            "got 2 arguments, the kernel has 3 parameters: const",
        ),
        (lambda x, y: (x, y, 300), "argument 2 is 300 (int), the kernel has int32"),
        (lambda x, y: (x, y, np.int64(300)), "(int64), the kernel has int32"),
        (lambda x, y: (x, y, np.float32(300)), "(float32), the kernel has int32"),
        (lambda x, y: (x.astype("f8"), y, i32(300)), "argument 0 is an array of float64"),
        (lambda x, y: (x[::2], y, i32(150)), "an array with strides (8,)"),
        (lambda x, y: (x, list(y), i32(1)), "(list), the kernel has float32*"),
        (
            lambda x, y: (np.float32(1), y, i32(1)),
            "(float32), the kernel has const float32*",
        ),
    ],
)
def test_arguments_of_a_wrong_number_or_type(args, what):
    x, y = np.zeros(300, "f4"), np.zeros(300, "f4")
    with pytest.raises(KernelError) as error:
        run(BUGS, "off_by_one", (1,), (32,), args(x, y))
    assert what in str(error.value)


def test_too_much_shared_memory():
    function = HostModule(BUGS).get_function("unset_shared")
    args = (np.zeros(64, "f4"),)
    with pytest.raises(KernelError, match="49153 bytes of dynamic shared memory, and"):
        function((1,), (64,), args, shared_mem=49153)
    function.max_dynamic_shared_size_bytes = 10**6
    function((1,), (64,), args, shared_mem=227 << 10)
    with pytest.raises(KernelError, match="227 KB is the end"):
        function((1,), (64,), args, shared_mem=(227 << 10) + 1)


# --- bugs that the sanitizers find, in a process of their own

SCRIPT = """
import sys
import numpy as np
from tinygrad_helix.cuda.host import HostModule, thread_order
name, threads, shared, order, *options = sys.argv[2:]
module = HostModule(open(sys.argv[1]).read(), options)
x, y = np.arange(300, dtype="f4"), np.zeros(300, "f4")
function = module.get_function(name)
args = (x, y, np.int32(64 if name == "turn" else 300))[: len(function.signature)]
if function.signature == ("float32*",):
    args = (y,)
with thread_order(int(order)):
    grid = (5 if name == "off_by_one" else 1,)
    function(grid, (int(threads),), args, shared_mem=int(shared))
print("came to the end")
"""


def sanitized(kind, name, *options, threads=64, shared=0, order=0):
    command = [
        *host.sanitizer_command(kind),
        sys.executable,
        "-c",
        SCRIPT,
        str(PLANTED / "bugs.cu"),
        name,
        str(threads),
        str(shared),
        str(order),
        *options,
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("kind", host.SANITIZERS)
@pytest.mark.parametrize("name", ["prefix", "turn"])
def test_right_kernels_pass_the_sanitizers(kind, name):
    result = sanitized(kind, name, order=2)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "came to the end\n"


@pytest.mark.parametrize(
    ("name", "shared", "report", "text"),
    [
        ("off_by_one", 0, "heap-buffer-overflow", "if (i <= n) y[i] = x[i]"),
        ("shared_overrun", 0, "index 64 out of bounds", "tile[threadIdx.x + 1]"),
        ("dynamic_shared_overrun", 256, "use-after-poison", "part[threadIdx.x + 1]"),
        ("misaligned", 0, "misaligned address", "reinterpret_cast<const float4*>"),
    ],
)  # fmt: skip
def test_the_address_sanitizer_catches(name, shared, report, text):
    result = sanitized("address,undefined", name, shared=shared)
    assert result.returncode != 0 and result.stdout == ""
    assert report in result.stderr
    assert f"kernel.cu:{line_of(text)}" in result.stderr


@pytest.mark.parametrize(
    ("name", "options", "lines"),
    [
        ("prefix", MISSING, ["+ carry;", "carry += tile[63]"]),
        ("turn", MISSING, ["tile[i] = x[i];", "31 - lane];"]),
        ("two_writers", (), ["y[threadIdx.x / 2]"]),
    ],
)
def test_the_thread_sanitizer_names_both_lines_of_a_race(name, options, lines):
    # also in the order in which the result is right
    result = sanitized("thread", name, *options)
    assert result.returncode == 66
    assert "data race" in result.stderr
    for text in lines:
        assert f"kernel.cu:{line_of(text)}" in result.stderr


def test_an_unknown_sanitizer():
    with pytest.raises(KernelError, match="there is no sanitizer 'memory'"):
        host.sanitizer_command("memory")
    assert host.active_sanitizer() is None


# --- building


def test_what_does_not_compile_is_quoted_with_its_line():
    with pytest.raises(KernelError, match=r"(?s)g\+\+ does not compile .*kernel.cu:2"):
        HostModule("\n__global__ void f(float* x) { x[0] = nothing; }")


def test_a_kernel_that_is_not_there():
    with pytest.raises(KernelError, match="has no kernel 'nothing', only prefix, turn"):
        compiled(BUGS).get_function("nothing")


def test_orders_are_whole_numbers():
    for order in (-1, 1.5, 2**32, None):
        with pytest.raises(KernelError, match="a thread order is a whole number"):
            thread_order(order).__enter__()


SMALL = 'extern "C" __global__ void f(float* y) { y[0] = SEVEN; }'


def build(folder, queue):
    module._cache = lambda: folder
    y = np.zeros(1, "f4")
    HostModule(SMALL, ["-DSEVEN=7"]).get_function("f")((1,), (1,), (y,))
    queue.put(float(y[0]))


def test_processes_may_build_the_same_at_once(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    workers = [spawn.Process(target=build, args=(tmp_path, queue)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [queue.get(timeout=60) for _ in workers] == [7.0] * 2
    assert len(list(tmp_path.iterdir())) == 1  # and no half-written file is left


def test_built_once(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_cache", lambda: tmp_path)
    for value, files in ((7, 1), (7, 1), (8, 2)):
        y = np.zeros(1, "f4")
        run(SMALL, "f", (1,), (1,), (y,), options=[f"-DSEVEN={value}"])
        assert y[0] == value and len(list(tmp_path.iterdir())) == files


def test_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_cache", lambda: tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(KernelError, match=r"needs the compiler g\+\+ .*apt install g\+\+"):
        HostModule(BUGS)
    monkeypatch.undo()
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(KernelError, match=r"is for Linux .* this is win32"):
        HostModule(BUGS)


def test_without_headers(monkeypatch):
    from tinygrad_helix.cuda import toolkit

    monkeypatch.setattr(toolkit, "_pathfinder", lambda: None)
    with pytest.raises(KernelError, match=r'pip install "tinygrad_helix\[test-cuda\]"'):
        toolkit.headers.__wrapped__()
    with pytest.raises(KernelError, match="cuda-pathfinder is missing"):
        toolkit.nvrtc_library.__wrapped__()


# --- with the checks of a launch


def test_a_file_of_ones_own(tmp_path):
    (tmp_path / "axpy.cuh").write_text(
        "template <class T> __device__ T axpy(T a, T x, T y) { return a * x + y; }\n"
    )
    (tmp_path / "my.cu").write_text(
        '#include "axpy.cuh"\n'
        "// x, y [n]\n"
        "// saxpy<{float, double}>: 16 registers\n"
        "template <typename T>\n"
        "__global__ void __launch_bounds__(128) saxpy(\n"
        "    const T* __restrict__ x, T* y, T a, int n) {\n"
        "    const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    if (i < n) y[i] = axpy(a, x[i], y[i]);\n"
        "}\n"
    )
    kernels = load(tmp_path / "my.cu", device=HostDevice())
    for dtype, kernel in (("f4", "saxpy<float>"), ("f8", "saxpy<double>")):
        x, y = np.arange(1000, dtype=dtype), np.ones(1000, dtype)
        for order in ORDERS:
            with thread_order(order):
                kernels[kernel]((8,), (128,), (x[::-1][::-1], y, 2, 1000))
        np.testing.assert_array_equal(y, 8 * x + 1)
    with pytest.raises(KernelError, match="y is an array of float32, the kernel takes"):
        kernels["saxpy<double>"]((8,), (128,), (x, y.astype("f4"), 2.0, 1000))


def test_the_parsed_signatures_are_the_compilers():
    """What a launch reads from the text of the package's kernels, g++ reads too."""
    for path in sorted(KERNELS.glob("*.cu")):
        source = read_source(path)
        lines = []
        for name in source.expressions:
            types = ", ".join(
                f"{'const ' if p.const else ''}{p.type}{'*' if p.pointer else ''}"
                for p in source.instance(name).parameters
            )
            same = f"std::is_same_v<decltype(&{name}), void (*)({types})>"
            lines.append(f'static_assert({same}, "{name}");\n')
        text = module._translated(source.text) + "".join(lines)
        folders = [f"-isystem{f}" for f in (module._HERE, *headers())]
        command = [compiler(), "-std=c++17", "-w", "-fsyntax-only", *folders, "-xc++", "-"]
        result = subprocess.run(command, input=text, text=True, capture_output=True)
        assert result.returncode == 0, result.stderr[:2000]


def test_every_array_of_the_packages_kernels_has_a_shape():
    for path in sorted(KERNELS.glob("*.cu")):
        source = read_source(path)
        for name in source.expressions:
            for p in source.instance(name).parameters:
                assert not p.pointer or p.shape is not None, (path.name, name, p.name)
