"""What a launch checks, and how it hands on: on a double of a module that records calls."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinygrad_helix.cuda.launch import load
from tinygrad_helix.cuda.source import KERNELS, Source, read_source
from tinygrad_helix.cuda.text import canonical, evaluate
from tinygrad_helix.errors import KernelError

CODE = """
#define TILE 16
constexpr int WIDE = 4;

// a, b, out [B, T, D]; scale [D + 1]; mask [B, T]. scale and mask may be null.
// gate<{float, double}, {8, 16}>: 40 registers
template <typename T, int U>
__global__ void __launch_bounds__(TILE * U) gate(
    const T* __restrict__ a, const T* b, T* __restrict__ out, const T* scale,
    const bool* mask, T by, int T_, long long n, unsigned m, bool flip, int D) {}

// x [rows, TILE]; pairs [rows, WIDE]
extern "C" __global__ void plain(const float* x, float4* pairs, int rows) {}

__global__ void halves(const __half2* x, __nv_bfloat16 *y, size_t n) {}

template <class S> struct State;
// where State<float> is double
template <class S> __global__ void dependent(State<S>* x, const unsigned char* y) {}
"""


class Record:
    """A module factory whose functions note what they are called with."""

    def __init__(self):
        self.made, self.calls, self.fault = [], [], None

    def __call__(self, *, code, options, name_expressions):
        self.made.append((options, name_expressions))
        return self

    def get_function(self, name):
        record = self

        class Function:
            max_dynamic_shared_size_bytes = 48 << 10

            def __call__(self, grid, block, args, *, shared_mem=0):
                if record.fault:
                    raise record.fault
                most = self.max_dynamic_shared_size_bytes
                record.calls.append((name, grid, block, args, shared_mem, most))

        return Function()


class Device:
    name = "test"
    xp = np
    array_type = np.ndarray

    def __init__(self):
        self.module_factory = Record()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "test.cu"
    path.write_text(CODE)
    return path


@pytest.fixture
def device():
    return Device()


def arguments(dtype="float32", B=2, T=3, D=5):
    x = np.ones((B, T, D), dtype)
    scale, mask = np.ones(D + 1, dtype), np.ones((B, T), bool)
    return [x, x.copy(), np.empty_like(x), scale, mask, 0.5, 1, 2, 3, True, D]


def changed(i, value):
    args = arguments()
    args[i] = value
    return args


# --- reading a file


def test_the_signature_is_read():
    source = Source(CODE, "test.cu")
    gate = source.instance("gate< float , 16 >")
    assert gate.expression == "gate<float,16>"
    assert [p.name for p in gate.parameters] == [
        "a", "b", "out", "scale", "mask", "by", "T_", "n", "m", "flip", "D",
    ]  # fmt: skip
    assert [p.dtype for p in gate.parameters] == [
        *["float32"] * 4, "bool", "float32", "int32", "int64", "uint32", "bool", "int32",
    ]  # fmt: skip
    assert [p.pointer for p in gate.parameters] == [True] * 5 + [False] * 6
    assert [p.const for p in gate.parameters][:5] == [True, True, False, True, True]
    assert [p.restrict for p in gate.parameters][:4] == [True, False, True, False]
    assert [p.nullable for p in gate.parameters][:5] == [False] * 3 + [True] * 2
    assert gate.parameters[0].shape == ("B", "T", "D")
    assert gate.parameters[3].shape == ("D + 1",)
    assert gate.max_threads == 256 and gate.registers == 40
    assert source.instance("gate<double,8>").parameters[5].dtype == "float64"
    plain = source.instance("plain")
    assert (plain.parameters[1].dtype, plain.parameters[1].lanes) == ("float32", 4)
    assert plain.registers is None and plain.max_threads is None
    halves = source.instance("halves")
    assert [(p.dtype, p.lanes) for p in halves.parameters] == [
        ("float16", 2), ("bfloat16", 1), ("uint64", 1),
    ]  # fmt: skip
    dependent = source.instance("dependent<float>")
    assert [p.dtype for p in dependent.parameters] == ["float64", "uint8"]
    assert source.expressions == [
        "gate<float,8>", "gate<float,16>", "gate<double,8>", "gate<double,16>",
        "plain", "halves",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("nothing", "has no kernel 'nothing'. Its kernels: gate, plain"),
        ("gate", "gives 0 template arguments, the kernel takes 2. Name it as gate<T, U>"),
        ("plain<float>", "gives 1 template arguments, the kernel takes 0"),
        ("dependent<double>", "where State<double> is float"),
    ],
)
def test_a_kernel_that_cannot_be_named(expression, what):
    with pytest.raises(KernelError) as error:
        Source(CODE, "test.cu").instance(expression)
    assert what in str(error.value)


@pytest.mark.parametrize(
    "parameter",
    [
        "float** x", "float& x", "Thing x", "std::complex<float>* x", "float* const* x",
        "float x = 1", "Thing",
    ],
)  # fmt: skip
def test_a_parameter_that_cannot_be_checked(parameter):
    source = Source(f"__global__ void f({parameter}) {{}}", "f.cu")
    with pytest.raises(KernelError, match="has a type that a launch cannot check"):
        source.instance("f")


@pytest.mark.parametrize(
    ("parameter", "what"),
    [
        ("float*", "has no name"),
        ("const float* __restrict__", "has no name"),
        ("float", "has no name"),
        ("unsigned int", "has no name"),
        ("long n", "64 bits on Linux and 32 on Windows"),
        ("unsigned long* n", "64 bits on Linux and 32 on Windows"),
        ("float x[4][4]", "more than a row of numbers"),
        ("float* x __restrict", None),
        ("float* x[]", "is not understood from '[' on"),
        ("float* x y", "is not understood from 'y' on"),
    ],
)
def test_a_parameter_that_says_too_little_or_too_much(parameter, what):
    source = Source(f"__global__ void f({parameter}) {{}}", "f.cu")
    if what is None:
        assert source.instance("f").parameters[0].restrict
        return
    with pytest.raises(KernelError) as error:
        source.instance("f")
    assert what in str(error.value)


@pytest.mark.parametrize(
    ("parameter", "dtype", "pointer", "const"),
    [
        ("float x[]", "float32", True, False),
        ("const float x[16]", "float32", True, True),
        ("float const x[N]", "float32", True, True),
        ("float const* const __restrict__ x", "float32", True, True),
        ("volatile int* x", "int32", True, False),
        ("signed int x", "int32", False, False),
        ("unsigned x", "uint32", False, False),
        ("signed x", "int32", False, False),
        ("long long int x", "int64", False, False),
        ("unsigned long long int x", "uint64", False, False),
        ("short int* x", "int16", True, False),
        ("signed char* x", "int8", True, False),
        ("std::size_t x", "uint64", False, False),
        ("std::uint8_t* x", "uint8", True, False),
        ("const real* x", "float64", True, True),
        ("index x", "int32", False, False),
        ("struct float4* x", "float32", True, False),
    ],
)
def test_every_spelling_of_a_type(parameter, dtype, pointer, const):
    code = "typedef double real;\nusing index = std::int32_t;\n"
    source = Source(f"{code}__global__ void f({parameter}) {{}}", "f.cu")
    (p,) = source.instance("f").parameters
    assert (p.name, p.dtype, p.pointer, p.const) == ("x", dtype, pointer, const)


def test_an_array_parameter_is_checked_as_a_pointer(tmp_path, device):
    (tmp_path / "f.cu").write_text("// x [n]\n__global__ void f(float x[], int n) {}")
    f = load(tmp_path / "f.cu", device=device)["f"]
    with pytest.raises(KernelError, match=r"float\* x is a builtins.float, no array"):
        f((1,), (1,), (1.0, 4))
    with pytest.raises(KernelError, match=r"x has shape \(3,\), the kernel takes x \[n\]"):
        f((1,), (1,), (np.ones(3, "f4"), 4))


def test_two_declarations_of_one_name():
    twice = (
        "#if A\n__global__ void f(float* x) {{}}\n#else\n__global__ void f({}) {{}}\n#endif"
    )
    assert Source(twice.format("float* x"), "f.cu").instance("f").parameters
    source = Source(twice.format("double* x"), "f.cu")
    with pytest.raises(KernelError, match=r"f\.cu declares 'f' more than once"):
        source.instance("f")
    prototype = "__global__ void f(float*);\n// x [n]\n__global__ void f(float* x) {}"
    assert Source(prototype, "f.cu").instance("f").parameters[0].shape == ("n",)


def test_namespaces():
    code = (
        "namespace a::b { int x; __global__ void no(int n) {} }\n"
        "namespace { __global__ void one(int n) {} }\n"
        'extern "C" { __global__ void two(int n) {} }\n'
    )
    assert Source(code, "f.cu").expressions == ["one", "two"]


@pytest.mark.parametrize(
    ("above", "shape"),
    [
        ("// x [n]\n", ("n",)),
        ("/* x [n] */\n", ("n",)),
        ("/* Doubles.\n * x [n, 3]. */\n", ("n", "3")),
        ("/* a */ int y; /* x [n] */\n", ("n",)),
        ("// x [n]\n\n", None),
        ("/* x [n] */ int y;\n", None),
    ],
)
def test_the_comment_directly_above(above, shape):
    source = Source(f"{above}__global__ void f(float* x, int n) {{}}", "f.cu")
    assert source.instance("f").parameters[0].shape == shape


@pytest.mark.parametrize(
    ("text", "threads"),
    [
        ("#define B 256\n", 256),
        ("#define B (256)\n", 256),
        ("constexpr int W = 32;\nstatic constexpr unsigned int B = W * 8;\n", 256),
        ("#define W 32\n#define B (W * 4)\n", 128),
        ("#ifdef X\n#define B 64\n#else\n#define B 128\n#endif\n", None),
        ("#define B blockDim.x\n", None),
    ],
)
def test_constants_of_the_file(text, threads):
    code = f"{text}// x [B]\n__global__ void __launch_bounds__(B) f(float* x) {{}}"
    assert Source(code, "f.cu").instance("f").max_threads == threads


def test_an_option_goes_before_a_constant(tmp_path, device):
    (tmp_path / "f.cu").write_text(
        "#ifndef N\n#define N 4\n#endif\n// x [N]\n__global__ void f(float* x) {}"
    )
    x = np.ones(8, "f4")
    load(tmp_path / "f.cu", device=device, options=["-DN=8"])["f"]((1,), (1,), (x,))
    with pytest.raises(KernelError, match="N = 4, a constant of the kernel"):
        load(tmp_path / "f.cu", device=device)["f"]((1,), (1,), (x,))


def test_only_ascii_reaches_the_compiler_but_in_strings(tmp_path, device):
    text = '// πr² [n]\n__global__ void f(float* x) { /* é */ printf("é"); } // ü'
    (tmp_path / "f.cu").write_text(text, encoding="utf-8")
    seen = read_source(tmp_path / "f.cu").text
    assert seen.endswith(
        '// ?r? [n]\n__global__ void f(float* x) { /* ? */ printf("é"); } // ?'
    )
    for path in KERNELS.iterdir():
        assert not path.is_file() or path.read_bytes().isascii(), path


def test_comments_and_strings_hide_nothing_and_declare_nothing():
    source = Source(
        "// __global__ void no(int n) {}\n/* __global__ void neither(int n) {} */\n"
        'const char* s = "__global__ void nor(int n) {}";\n'
        "__global__ void /* launched often */ f(int n, // how many\n  float* x) {}\n",
        "f.cu",
    )
    assert source.expressions == ["f"]
    assert [p.name for p in source.instance("f").parameters] == ["n", "x"]


def test_own_includes_are_filled_in_once(tmp_path):
    (tmp_path / "b.cuh").write_text("#pragma once\nint b;\n")
    (tmp_path / "a.cuh").write_text('#include "b.cuh"\nint a;\n')
    (tmp_path / "k.cu").write_text(
        '#include "a.cuh"\n#include "b.cuh"\n#include <cuda_fp16.h>\n'
        '#include "other.h"\nint k;'
    )
    text = read_source(tmp_path / "k.cu").text
    assert text.count("int b;") == text.count("int a;") == text.count("int k;") == 1
    assert "pragma once" not in text
    assert "#include <cuda_fp16.h>" in text and '#include "other.h"' in text
    assert '#line 2 "k.cu"' in text and '#line 1 "a.cuh"' in text


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 99))
def test_expressions_of_shapes_are_integers(a, b, c):
    values = {"a": a, "b": b}
    assert evaluate(f"(a + {c}) * 2 - a / b", values) == (a + c) * 2 - a // b


@pytest.mark.parametrize("text", ["a + ", "f(a)", "a.b", "1.5", "'x'", "a if b else c"])
def test_what_is_no_expression_is_refused(text):
    with pytest.raises((ValueError, KeyError)):
        evaluate(text, {"a": 1, "b": 2, "c": 3})


def test_one_spelling():
    assert canonical(" f < float , unsigned  int,16 > ") == "f<float,unsigned int,16>"


# --- arguments


def test_what_the_function_gets_has_exactly_the_types_of_the_kernel(file, device):
    gate = load(file, device=device)["gate<float, 16>"]
    args = arguments()
    args[8] = np.int64(3)
    gate((7,), (16, 2), args, shared_mem=100)
    ((name, grid, block, got, shared, _),) = device.module_factory.calls
    assert (name, grid, block, shared) == ("gate<float,16>", (7, 1, 1), (16, 2, 1), 100)
    assert all(g is a for g, a in zip(got[:5], args[:5], strict=True))
    assert [type(g) for g in got[5:]] == [
        np.float32, np.int32, np.int64, np.uint32, np.bool, np.int32,
    ]  # fmt: skip
    assert [g.item() for g in got[5:]] == [0.5, 1, 2, 3, True, 5]


@pytest.mark.parametrize(
    ("i", "value", "what"),
    [
        (0, np.ones((2, 3, 5)), "a is an array of float64, the kernel takes float32"),
        (0, [1.0], "a is a builtins.list, no array on 'test'"),
        (0, None, 'a is None. Give an array; if the kernel does take a null pointer there, '
         'say so in the comment above it: "a may be null"'),
        (0, np.ones((2, 3, 5), ">f4"), "is an array of >f4"),
        (2, np.ones((2, 3, 10), "f4")[..., ::2], "strides (120, 40, 8): it is not C-cont"),
        (1, np.ones((2, 4, 5), "f4"), "b has shape (2, 4, 5), the kernel takes b [B, T, D] "
         "with T = 3, that of a"),
        (1, np.ones((6, 5), "f4"), "b has shape (6, 5), the kernel takes b [B, T, D]."),
        (3, np.ones(5, "f4"), "scale [D + 1] with D + 1 = 6"),
        (10, 4, "takes a [B, T, D] with D = 4, the argument"),
        (5, "1", "T by takes a number, not '1' (str)"),
        (5, True, "takes a number, not True (bool)"),
        (5, 1e39, "is 1e+39, beyond the largest float"),
        (6, 1.0, "int T_ takes a whole number, not 1.0 (float)"),
        (6, 2**31, "int T_ is 2147483648, and int holds -2147483648 to 2147483647. Split"),
        (7, 2**63, "long long n is 9223372036854775808"),
        (8, -1, "unsigned int m is -1, and unsigned int holds 0 to"),
        (9, 1, "bool flip takes True or False, not 1"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_and_nothing_runs(file, device, i, value, what):
    gate = load(file, device=device)["gate<float,16>"]
    with pytest.raises(KernelError) as error:
        gate((1,), (16,), changed(i, value))
    assert what.replace("T by", "float by") in str(error.value)
    assert str(error.value).startswith("test.cu: gate<float,16>: ")
    assert device.module_factory.calls == []


def test_numbers_at_the_edge_of_a_type_pass(file, device):
    gate = load(file, device=device)["gate<float,16>"]
    args = changed(5, float("inf"))
    args[6:9] = [2**31 - 1, -(2**63), 2**32 - 1]
    gate((1,), (16,), args)
    assert device.module_factory.calls[0][3][5] == np.inf


def test_too_few_arguments(file, device):
    with pytest.raises(KernelError, match="got 2 arguments, the kernel has 3 parameters"):
        load(file, device=device)["plain"]((1,), (1,), (None, None))


def test_optional_pointers_may_be_none(file, device):
    args = arguments()
    args[3] = args[4] = None
    load(file, device=device)["gate<float,16>"]((1,), (16,), args)
    assert device.module_factory.calls[0][3][3:5] == (None, None)


def test_strided_inputs_are_copied_in_c_order(file, device):
    wide = np.arange(60, dtype="f4").reshape(2, 3, 10)
    args = arguments()
    args[0], args[1] = wide[..., ::2], np.broadcast_to(np.float32(2), (2, 3, 5))
    load(file, device=device)["gate<float,16>"]((1,), (16,), args)
    got = device.module_factory.calls[0][3]
    assert got[0].flags.c_contiguous and (got[0] == wide[..., ::2]).all()
    assert got[1].flags.c_contiguous and (got[1] == 2).all()


@pytest.mark.parametrize(
    ("type_", "dtype", "size"),
    [("float4", "f4", 16), ("__half2", "f2", 4), ("double", "f8", 8)],
)
def test_arrays_begin_at_a_multiple_of_their_element(tmp_path, device, type_, dtype, size):
    (tmp_path / "f.cu").write_text(
        f"// x, y [n]\n__global__ void f(const {type_}* x, {type_}* y) {{}}"
    )
    f = load(tmp_path / "f.cu", device=device)["f"]
    raw = np.zeros(256, np.uint8)
    skip = -raw.ctypes.data % 16 + np.dtype(dtype).itemsize // (1 + (type_ == "double"))
    odd = raw[skip : skip + 64].view(dtype)
    odd[...] = np.arange(odd.size)
    even = np.zeros(odd.size, dtype)
    f((1,), (1,), (odd, even))
    x, y = device.module_factory.calls[0][3]
    assert x is not odd and x.ctypes.data % size == 0 and (x == odd).all()
    assert y is even
    with pytest.raises(KernelError, match=rf"y, which the kernel writes, .* {size} bytes"):
        f((1,), (1,), (even, odd))
    f((1,), (1,), (odd[:0], even[:0]))  # nothing is read: no copy is needed
    assert device.module_factory.calls[1][3][0].base is not None


def test_read_only_outputs_are_refused(file, device):
    args = arguments()
    args[2].flags.writeable = False
    with pytest.raises(KernelError, match="out, which the kernel writes, is read-only"):
        load(file, device=device)["gate<float,16>"]((1,), (16,), args)
    args = arguments()
    args[0].flags.writeable = False
    load(file, device=device)["gate<float,16>"]((1,), (16,), args)


def test_an_output_shares_no_memory_where_restrict_promises_it(file, device):
    args = arguments()
    gate = load(file, device=device)["gate<float,16>"]
    gate((1,), (16,), [args[0], args[0], *args[2:]])  # two inputs may
    for i in (0, 1):
        args = changed(i, (both := np.ones((4, 3, 5), "f4"))[1:3])
        args[2] = both[2:]
        with pytest.raises(KernelError, match=f"out, .* shares memory with {'ab'[i]}, and"):
            gate((1,), (16,), args)
    args[2] = both[:1].repeat(2, 0)
    gate((1,), (16,), args)


def test_arrays_of_vectors_are_counted_in_their_elements(file, device):
    plain = load(file, device=device)["plain"]
    plain((1,), (1,), (np.ones((3, 16), "f4"), np.ones((3, 16), "f4"), 3))
    with pytest.raises(KernelError, match=r"pairs \[rows, WIDE\] with WIDE = 4, a con"):
        plain((1,), (1,), (np.ones((3, 16), "f4"), np.ones((3, 4), "f4"), 3))
    with pytest.raises(KernelError, match="whose last axis is no multiple of the 4"):
        plain((1,), (1,), (np.ones((3, 16), "f4"), np.ones((3, 15), "f4"), 3))


def test_16_bit_arrays(file, device):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x, y = np.ones(4, "f2"), np.ones(4, ml_dtypes.bfloat16)
    halves = load(file, device=device)["halves"]
    halves((1,), (1,), (x, y, 4))
    with pytest.raises(KernelError, match="is an array of float16, the kernel takes bfl"):
        halves((1,), (1,), (x, x.copy(), 4))


# --- grid, block, shared memory


@pytest.mark.parametrize(
    ("grid", "block", "what"),
    [
        ((2**31,), (1,), "grid.x is 2147483648, CUDA takes 0 to 2147483647"),
        (
            (1, 65536),
            (1,),
            "grid.y is 65536, CUDA takes 0 to 65535. Put the",
        ),
        ((1, 1, 65536), (1,), "grid.z is 65536"),
        ((-1,), (1,), "grid.x is -1"),
        ((1,), (1025,), "block.x is 1025, CUDA takes 0 to 1024"),
        ((1,), (1, 1, 65), "block.z is 65"),
        ((1,), (32, 33), "(32, 33, 1) is 1056 threads, the kernel takes 1 to 1024"),
        ((1,), (0,), "is 0 threads"),
        ((1.5,), (1,), "the grid is (1.5,). Give one to three whole numbers"),
        ((), (1,), "the grid is ()"),
        ((1, 1, 1, 1), (1,), "the grid is (1, 1, 1, 1)"),
    ],
)
def test_limits_of_grid_and_block(file, device, grid, block, what):
    with pytest.raises(KernelError) as error:
        load(file, device=device)["halves"](grid, block, (None, None, 1))
    assert what in str(error.value)


def test_launch_bounds_are_a_limit_too(file, device):
    with pytest.raises(KernelError, match="129 threads, the kernel takes 1 to 128, says"):
        load(file, device=device)["gate<float,8>"]((1,), (129,), arguments())


@pytest.mark.parametrize(
    ("arguments_", "what"),
    [
        ({"grid": 1.0}, r"the grid is 1.0. Give one to three"),
        ({"grid": None}, r"the grid is None. Give one to three"),
        ({"grid": True}, r"the grid is True. Give one to three"),
        ({"block": (True,)}, r"the block is \(True,\)"),
        ({"args": None}, r"the arguments are None. Give a tuple"),
        ({"shared_mem": -1}, r"shared_mem is -1. Give a number of bytes"),
        ({"shared_mem": "a"}, r"shared_mem is 'a'"),
    ],
)
def test_what_is_no_launch(file, device, arguments_, what):
    gate = load(file, device=device)["gate<float,16>"]
    with pytest.raises(KernelError, match=what):
        gate(**({"grid": (1,), "block": (16,), "args": arguments()} | arguments_))
    assert not device.module_factory.calls


def test_a_shape_that_has_no_value(tmp_path, device):
    (tmp_path / "f.cu").write_text("// x [n / 0]\n__global__ void f(float* x, int n) {}")
    with pytest.raises(KernelError, match="'n / 0' has no value in this launch"):
        load(tmp_path / "f.cu", device=device)["f"](1, 1, (np.ones(1, "f4"), 1))


def test_an_empty_grid_launches_nothing_but_is_checked(file, device):
    gate = load(file, device=device)["gate<float,16>"]
    gate((0,), (16,), arguments(B=0))
    assert device.module_factory.made == []
    with pytest.raises(KernelError):
        gate((0,), (16,), changed(0, None))


def test_shared_memory_above_48_kb_is_opted_into(file, device):
    plain = load(file, device=device)["plain"]
    args = (np.ones((3, 16), "f4"), np.ones((3, 16), "f4"), 3)
    for size in (48 << 10, 100_000, 50_000):
        plain((1,), (1,), args, shared_mem=size)
    assert [call[4:] for call in device.module_factory.calls] == [
        (49152, 49152), (100_000, 100_000), (50_000, 100_000),
    ]  # fmt: skip


# --- modules


def test_compiled_once_and_only_when_launched(file, device):
    module = load(file, ["gate<float, 16>", "plain"], device=device, options=("-DX=1",))
    assert device.module_factory.made == []
    assert list(module) == ["gate<float,16>", "plain"] and len(module) == 2
    args = (np.ones((3, 16), "f4"), np.ones((3, 16), "f4"), 3)
    for _ in range(2):
        again = load(file, ["gate<float,16>", "plain"], device=device, options=("-DX=1",))
        again["plain"]((1,), (1,), args)
    assert again is module
    assert device.module_factory.made == [(("-DX=1",), ("gate<float,16>", "plain"))]
    other = Device()
    load(file, ["gate<float,16>", "plain"], device=other)["plain"]((1,), (1,), args)
    assert other.module_factory.made == [((), ("gate<float,16>", "plain"))]


def test_an_edited_file_is_another_module(file, device):
    first = load(file, device=device)
    file.write_text(CODE + "\n// more\n")
    assert load(file, device=device) is not first


def test_a_device_is_not_kept_alive_by_its_kernels(file):
    import gc
    import weakref

    device = Device()
    load(file, device=device)["plain"]
    gone = weakref.ref(device)
    del device
    gc.collect()
    assert gone() is None


def test_missing_files_and_kernels(file, device):
    with pytest.raises(KernelError, match=r"there is no kernel file 'nowhere.cu'"):
        load("nowhere.cu", device=device)
    with pytest.raises(KernelError, match=r"loaded without 'gate<float,4>'.*// gate<"):
        load(file, device=device)["gate<float,4>"]


class DynamicLibNotFoundError(RuntimeError):
    """Named as the error of cuda.pathfinder, which CuPy lets through."""


@pytest.mark.parametrize(
    "fault",
    [
        DynamicLibNotFoundError("libnvrtc.so.13"),
        RuntimeError("Failed to find CUDA headers"),
    ],
)
def test_a_missing_compiler_names_what_to_install(file, device, fault):
    device.module_factory.fault = fault
    args = (np.ones((3, 16), "f4"), np.ones((3, 16), "f4"), 3)
    with pytest.raises(
        KernelError, match=r"pip install \"cuda-toolkit\[cublas,cudart,nvrtc\]"
    ):
        load(file, device=device)["plain"]((1,), (1,), args)


def test_a_failing_compiler_is_quoted(file):
    class Broken(Device):
        def __init__(self):
            def fail(**kwargs):
                raise RuntimeError("test.cu(3): error: no such thing")

            self.module_factory = fail

    args = (np.ones((3, 16), "f4"), np.ones((3, 16), "f4"), 3)
    with pytest.raises(KernelError, match=r"(?s)does not compile:\n.*error: no such thing"):
        load(file, device=Broken())["plain"]((1,), (1,), args)


def test_a_failing_launch_says_with_what(file, device):
    device.module_factory.fault = RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")
    args = (np.ones((3, 16), "f4"), np.ones((3, 16), "f4"), 3)
    with pytest.raises(KernelError, match=r"grid \(1, 1, 1\).* failed: CUDA_ERROR_ILLEGAL"):
        load(file, device=device)["plain"]((1,), (1,), args)
