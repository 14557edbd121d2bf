"""`kernels FILE --run NAME`: a kernel tried on the CPU, from the command line."""

import json

import pytest

from tinygrad_helix.cli import main

CODE = """
// x, y [n]
extern "C" __global__ void saxpy(const float* x, float* y, float a, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n + PAST) y[i] += a * x[i];
}

// x [B, T]; gain [T]; total [B]; mask, count [B, 2 * T]. gain may be null.
// rows<{float, double}>: 32 registers
template <typename T_>
__global__ void __launch_bounds__(64) rows(
    const T_* x, const T_* gain, T_* total, const bool* mask, int* count, int B, int T) {
    __shared__ T_ part[64];
    T_ sum = 0;
    for (int t = threadIdx.x; t < T; t += 64)
        sum += x[blockIdx.x * T + t] * (gain ? gain[t] : T_(1));
    part[threadIdx.x] = sum;
    BARRIER;
    if (threadIdx.x == 0) {
        sum = 0;
        for (int i = 0; i < 64; ++i) sum += part[i];
        total[blockIdx.x] = sum;
    }
}

// x [n]
__global__ void depth(float* x, int n, int steps, bool back) { if (back) x[0] = steps; }

__global__ void bare(float* x) {}
"""

PYTHON = """
def saxpy(x, y, a, n):
    return a * x + y

def rows(x, gain, total, mask, count, B, T):
    return {"total": (x if gain is None else x * gain).sum(1), "count": count}

def depth(x, n, steps, back):
    return 1 / 0
"""


@pytest.fixture
def kernels(tmp_path, capsys, monkeypatch):
    """Run the command; its exit status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(PYTHON)

    def run(*arguments, past=0, barrier="__syncthreads()"):
        code = CODE.replace("PAST", str(past)).replace("BARRIER", barrier)
        (tmp_path / "my.cu").write_text(code)
        status = main(["kernels", *arguments])
        out, err = capsys.readouterr()
        return status, out, " ".join(err.split())

    return run


@pytest.mark.host
def test_a_kernel_runs_on_inputs_that_are_made_up(kernels):
    status, out, _ = kernels("my.cu", "--run", "saxpy", "--against", "my.py")
    assert status == 0
    lines = [line.strip() for line in out.splitlines()]
    assert lines[0] == "saxpy on the CPU: 8 blocks of 128 threads"
    assert lines[1] == "x = float32[1000], y = float32[1000], a = 0.5, n = 1000"
    assert lines[3].startswith("y: 1,000 of 1,000 elements changed, now -")
    assert lines[4] == "the four orders of threads agree"
    assert lines[5].endswith("of the largest value from the reference")


@pytest.mark.host
def test_sizes_scalars_grid_and_block_can_be_set(kernels):
    status, out, _ = kernels(
        "my.cu", "--run", "saxpy", "--set", "n=70", "--set", "a=2", "--grid", "3,1",
        "--block", "32", "--json", "-",
    )  # fmt: skip
    assert status == 0
    (row,) = json.loads(out)["rows"]
    assert row["ok"] and row["kernel"] == "saxpy"
    assert (row["grid"], row["block"]) == ([3, 1], [32])
    assert row["arguments"] == {"x": "float32[70]", "y": "float32[70]", "a": 2, "n": 70}
    (y,) = row["outputs"]
    assert (y["name"], y["shape"], y["changed"], y["against"]) == ("y", [70], 70, None)
    assert y["between_orders"] == 0


@pytest.mark.host
def test_templates_shapes_and_null_pointers(kernels):
    arguments = ("my.cu", "--run", "rows<double>", "--against", "my.py", "--grid", "7")
    for more, gain in (((), "gain = float64[19]"), (("--set", "gain=None"), "gain = None")):
        status, out, _ = kernels(*arguments, *more)
        assert status == 0, out
        assert f"x = float64[7, 19], {gain}, total = float64[7]" in out
        assert "mask = bool[7, 38], count = int32[7, 38], B = 7, T = 19" in out
        assert "total: 7 of 7 elements changed" in out
        assert "count: 0 of 266 elements changed" in out


@pytest.mark.host
def test_a_missing_barrier_is_wrong_in_some_order(kernels):
    status, out, _ = kernels("my.cu", "--run", "rows<float>", "--grid", "7", barrier="")
    assert status == 1
    assert "WRONG: orders of threads differ by" in out and "A barrier is missing" in out


OUTSIDE = {
    "y[i] = 2 * x[i];": "wrote past the end of y: to element 1,023, and it has 1,000",
    "if (i > n) y[i] = x[i];": "wrote past the end of y: to element 1,023",
    "if (i <= n) y[i] = i;": "wrote past the end of y: to element 1,000, and it has 1,000",
    "if (i < n) y[i - 3] = 1;": "wrote before the beginning of y: to element -3",
    "if (i < n) y[i] = x[i + 1];": "read outside of its arrays, and the results show it",
    "if (i < n) y[i] = x[i - 1];": "read outside of its arrays, and the results show it",
    "if (i < n) y[i] = x[i], const_cast<float*>(x)[n] = 0;": "wrote past the end of x: to",
    "if (i < n) y[i << 20] = x[i];": "its process was ended by SIGSEGV",
}


@pytest.mark.host
@pytest.mark.parametrize("body", OUTSIDE)
def test_an_index_that_goes_astray(tmp_path, capfd, body):
    """Without --sanitize too, in all orders alike, and this process lives."""
    (tmp_path / "f.cu").write_text(
        "// x, y [n]\n__global__ void f(const float* x, float* y, int n) {\n"
        f"    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    {body}\n}}\n"
    )
    assert main(["kernels", str(tmp_path / "f.cu"), "--run", "f"]) == 1
    assert f"WRONG: it {OUTSIDE[body]}".replace("it its", "its") in capfd.readouterr().out


@pytest.mark.host
def test_what_the_last_block_left_is_not_blamed_on_an_index(tmp_path, capfd):
    """A sum over shared memory that is never set: the last launch's values stay there."""
    (tmp_path / "f.cu").write_text(
        "// x, y [n]\n__global__ void __launch_bounds__(32) f(const float* x, float* y) {\n"
        "    __shared__ float s[32];\n    s[threadIdx.x] += x[threadIdx.x];\n"
        "    y[threadIdx.x] = s[threadIdx.x];\n}\n"
    )
    assert main(["kernels", str(tmp_path / "f.cu"), "--run", "f", "--set", "n=32"]) == 1
    out = capfd.readouterr().out
    assert "orders of threads differ" in out and "outside" not in out


@pytest.mark.host
def test_what_was_never_set_shows(tmp_path, capfd):
    """A local variable is no lucky 0: its value is absurd, and --against sees it."""
    (tmp_path / "f.cu").write_text(
        "// x, y [n]\n__global__ void f(const float* x, float* y, int n) {\n"
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    float sum;\n"
        "    if (i < n) { sum += x[i]; y[i] = sum; }\n}\n"
    )
    (tmp_path / "f.py").write_text("def f(x, y, n): return x\n")
    arguments = ["kernels", str(tmp_path / "f.cu"), "--run", "f"]
    assert main([*arguments, "--against", str(tmp_path / "f.py")]) == 1
    assert "WRONG" in capfd.readouterr().out


@pytest.mark.host
def test_what_a_kernel_prints_is_no_part_of_the_report(tmp_path, capfd):
    (tmp_path / "f.cu").write_text(
        '#include <stdio.h>\n// x [n]\n__global__ void f(float* x) { printf("hello\\n"); }'
    )
    assert main(["kernels", str(tmp_path / "f.cu"), "--run", "f", "--json", "-"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["rows"][0]["outside"] == [] and "hello" in err


@pytest.mark.host
def test_a_wrong_result_is_wrong(kernels):
    # one block too few: the rest is as it was
    arguments = ("my.cu", "--run", "saxpy", "--against", "my.py")
    status, out, _ = kernels(*arguments, "--grid", "7")
    assert status == 1
    assert "WRONG" in out and "from the reference, allowed are 1e-05" in out
    assert kernels(*arguments, "--grid", "7", "--tolerance", "10")[0] == 0


@pytest.mark.host
def test_the_sanitizers_find_what_the_result_does_not_show(kernels):
    arguments = ("my.cu", "--run", "saxpy", "--against", "my.py", "--sanitize")
    status, out, _ = kernels(*arguments, past=1)
    assert status == 1
    assert "address,undefined sanitizer: FOUND" in out
    assert "ERROR: AddressSanitizer: heap-buffer-overflow" in out and "my.cu:5" in out
    assert "thread sanitizer: found nothing" in out
    status, out, _ = kernels(
        "my.cu", "--run", "rows<float>", "--grid", "7", "--sanitize", barrier=""
    )
    assert status == 1
    assert "address,undefined sanitizer: found nothing" in out
    assert "thread sanitizer: FOUND" in out and "data race" in out
    assert "my.cu:17" in out and "my.cu:21" in out


@pytest.mark.host
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--run", "nothing"], "my.cu has no kernel 'nothing'. Its kernels: saxpy, rows"),
        (["--run", "rows"], "Name it as rows<T_>"),
        (["--run", "saxpy", "--set", "m=3"], "has nothing called m. It has: a, n"),
        (["--run", "saxpy", "--set", "n=x"], "the size n is a whole number, not 'x'"),
        (["--run", "saxpy", "--set", "x=1"], "x is an array; only None"),
        (["--run", "saxpy", "--set", "x=None"], "x is None. Give an array"),
        (["--run", "depth"], "so its value has to be said: --set steps=1"),
        (["--run", "bare"], "Write it in a comment directly above the kernel: // x [n]"),
        (["--run", "saxpy", "--block", "2000"], "block.x is 2000, CUDA takes 0 to 1024"),
        (["--run", "depth", "--set", "steps=1", "--against", "my.py"],
         "depth failed with ZeroDivisionError: division by zero"),
        (["--run", "bare", "--arch", "sm_90"], "--arch would change nothing"),
        (["--set", "n=1"], "--set would change nothing without --run NAME"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_said(kernels, arguments, what):
    status, out, err = kernels("my.cu", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("tinygrad-helix kernels: ") and what in err


def test_run_takes_one_file(kernels):
    for files in ((), ("a.cu", "b.cu")):
        status, _, err = kernels(*files, "--run", "saxpy")
        assert status == 2 and "--run takes one FILE" in err
    status, _, err = kernels("none.cu", "--run", "saxpy")
    assert status == 2 and "there is no kernel file 'none.cu'" in err


@pytest.mark.parametrize("text", ["x", "1,2,3,4", "0", "1,-1", ""])
def test_grids_are_one_to_three_numbers(kernels, text):
    with pytest.raises(SystemExit) as error:
        kernels("my.cu", "--run", "saxpy", "--grid", text)
    assert error.value.code == 2
