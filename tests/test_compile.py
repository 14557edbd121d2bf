"""Kernels compiled by NVRTC with no GPU: none spills or takes more than its file allows."""

import json

import pytest

from tinygrad_helix.cli import main
from tinygrad_helix.cuda import compile as nvrtc
from tinygrad_helix.cuda import toolkit
from tinygrad_helix.cuda.compile import ARCHITECTURES, Resources, architectures, resources
from tinygrad_helix.cuda.source import KERNELS, Source, read_source
from tinygrad_helix.errors import KernelError

FILES = sorted(path.name for path in KERNELS.glob("*.cu"))

CODE = """
// few<float>: 4 registers
// few<double>: 255 registers
template <typename T> __global__ void few(const T* x, T* y) {
    __shared__ T tile[256];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[255 - threadIdx.x] * x[0] + x[1];
}

// Holds 96 numbers of its own that have to be there at once, in at most 64 registers.
__global__ void __launch_bounds__(1024) spills(const float* x, float* y, int n) {
    float v[96];
#pragma unroll
    for (int i = 0; i < 96; ++i) v[i] = x[i * n + threadIdx.x];
#pragma unroll 1
    for (int k = 0; k < n; ++k)
#pragma unroll
        for (int i = 0; i < 96; ++i) v[i] = v[i] * v[(i + 5) % 96] + x[k];
#pragma unroll
    for (int i = 0; i < 96; ++i) y[i * n + threadIdx.x] = v[i];
}
"""


def test_the_report_of_ptxas_is_read():
    log = """\
ptxas info    : 0 bytes gmem, 8 bytes cmem[4]
ptxas info    : Compiling entry function '_Z3fewIfEvPKT_PS0_' for 'sm_90'
ptxas info    : Function properties for _Z3fewIfEvPKT_PS0_
ptxas         .     24 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 1024 bytes smem
ptxas info    : Compile time = 1.1 ms
ptxas info    : Compiling entry function 'plain' for 'sm_90'
ptxas info    : Function properties for plain
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers
"""
    assert nvrtc._report(log) == {
        "_Z3fewIfEvPKT_PS0_": {
            "registers": 32, "spill_bytes": 36, "stack_bytes": 24, "shared_bytes": 1024,
        },
        "plain": {
            "registers": 8, "spill_bytes": 0, "stack_bytes": 0, "shared_bytes": 0,
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("registers", "budget", "spill", "ok"),
    [(32, 32, 0, True), (33, 32, 0, False), (8, 32, 4, False), (99, None, 0, True)],
)
def test_what_is_allowed(registers, budget, spill, ok):
    assert Resources("f.cu", "f", "sm_90", registers, budget, spill, 0, 0).ok is ok


@pytest.mark.parametrize("file", FILES)
def test_every_kernel_states_its_registers_and_its_threads(file):
    source = read_source(file)
    for name, declaration in source.declarations.items():
        stated = [e for e in source.budgets if e.partition("<")[0] == name]
        assert stated, f"{file}: {name}: no line `// {name}<…>: 32 registers`"
        assert declaration.bounds, f"{file}: {name} has no __launch_bounds__"
    for expression in source.expressions:
        assert source.instance(expression).max_threads, expression


# All of it takes three minutes of one core.
@pytest.mark.nvrtc
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_no_kernel_spills_or_takes_more_registers_than_it_states(file, arch):
    if arch not in architectures():
        assert arch == "sm_100"  # NVRTC has it from 12.8 on
        return
    source = read_source(file)
    rows = resources(source, arch)
    assert {row.kernel for row in rows} == set(source.expressions)
    wrong = [row for row in rows if not row.ok or row.budget is None]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.nvrtc
def test_the_architectures_of_the_command_are_known():
    assert set(ARCHITECTURES) - {"sm_100"} <= set(architectures())  # that from 12.8 on


@pytest.mark.nvrtc
def test_a_kernel_that_takes_too_much_is_found():
    rows = {row.kernel: row for row in resources(Source(CODE, "code.cu"), "sm_90")}
    assert list(rows) == ["few<float>", "few<double>", "spills"]
    assert rows["few<float>"].registers > 4 and not rows["few<float>"].ok
    assert rows["few<double>"].ok and rows["few<double>"].budget == 255
    assert rows["few<float>"].shared_bytes == 1024
    assert rows["few<double>"].shared_bytes == 2048
    assert rows["spills"].spill_bytes > 0 and not rows["spills"].ok
    assert rows["spills"].registers <= 64


@pytest.mark.nvrtc
def test_options_reach_the_compiler():
    source = Source('extern "C" __global__ void f(float* y) { y[0] = SEVEN; }', "f.cu")
    assert resources(source, "sm_80", options=("-DSEVEN=7",))[0].ok
    with pytest.raises(KernelError, match=r'(?s)f.cu does not compile for sm_80:.*"SEVEN"'):
        resources(source, "sm_80")


@pytest.mark.nvrtc
def test_what_cannot_be_compiled_says_so():
    with pytest.raises(
        KernelError, match=r"does not compile for 'sm_20'. It knows: .*sm_90"
    ):
        resources(Source(CODE, "code.cu"), "sm_20")
    with pytest.raises(KernelError, match=r"has no kernel that could be compiled"):
        resources(Source("template <class T> __global__ void f(T* x) {}", "f.cu"), "sm_90")
    with pytest.raises(
        KernelError, match=r"(?s)f.cu does not compile for sm_90:.*f.cu\(2\)"
    ):
        resources(Source("\n__global__ void f(float* x) { y; }", "f.cu"), "sm_90", ["f"])


@pytest.mark.nvrtc
def test_16_bit_headers_are_found():
    code = "#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n" + (
        "__global__ void f(const __half* x, __nv_bfloat16* y) {"
        " y[0] = __float2bfloat16(__half2float(x[0])); }"
    )
    assert resources(Source(code, "f.cu"), "sm_80")[0].registers > 0


def test_without_nvrtc(monkeypatch):
    class Pathfinder:
        @staticmethod
        def load_nvidia_dynamic_lib(name):
            raise RuntimeError("No such file: libnvrtc.so*\n...")

    monkeypatch.setattr(toolkit, "_pathfinder", lambda: Pathfinder)
    with pytest.raises(KernelError) as error:
        toolkit.nvrtc_library.__wrapped__()
    assert "No such file: libnvrtc.so*" in str(error.value)
    assert 'pip install "tinygrad_helix[test-cuda]"' in str(error.value)


# --- the command


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "code.cu"
    path.write_text(CODE)
    return path


@pytest.mark.nvrtc
def test_the_command_compiles_a_file(file, capsys, tmp_path):
    out = tmp_path / "rows.json"
    arguments = ["kernels", str(file), "--arch", "sm_80", "--arch", "90"]
    assert main([*arguments, "--json", str(out)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["kernel", "allowed", "sm_80", "sm_90", "shared"]
    assert lines[3] == "code.cu"
    few = lines[4].split()
    assert few[:2] == ["few<float>", "4"] and few.count("!") == 2
    assert few[-2:] == ["1,024", "B"]
    assert " B !" in lines[6]  # spilled bytes
    report = json.loads(out.read_text())
    assert report["config"]["arch"] == ["sm_80", "sm_90"]
    assert [(r["kernel"], r["arch"], r["ok"]) for r in report["rows"]] == [
        ("few<float>", "sm_80", False), ("few<double>", "sm_80", True),
        ("spills", "sm_80", False), ("few<float>", "sm_90", False),
        ("few<double>", "sm_90", True), ("spills", "sm_90", False),
    ]  # fmt: skip


@pytest.mark.nvrtc
def test_the_command_compiles_a_file_of_the_package(capsys):
    file = "helix_weights.cu"
    assert main(["kernels", file, "--arch", "sm_90", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert all(row["ok"] for row in report["rows"])
    assert {row["kernel"] for row in report["rows"]} == set(read_source(file).expressions)


def test_the_command_takes_one_architecture_and_shows_how_far_it_is(
    file, capsys, monkeypatch
):
    asked = []

    def resources(source, arch):
        asked.append(arch)
        assert f"{source.name} for {arch}" in capsys.readouterr().err  # before it is done
        return [Resources(source.name, "few", arch, 8, None, 0, 0, 0)]

    monkeypatch.setattr(nvrtc, "resources", resources)
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: "13.0")
    monkeypatch.setattr(nvrtc, "architectures", lambda: ("sm_75", "sm_80", "sm_90"))
    for options, due in (
        ([], ["sm_90"]),
        (["--arch", "80"], ["sm_80"]),
        (["--arch", "all"], ["sm_75", "sm_80", "sm_90"]),
    ):
        asked.clear()
        assert main(["kernels", str(file), *options]) == 0
        assert asked == due


@pytest.mark.nvrtc
def test_the_command_refuses_what_it_cannot_do(file, capsys):
    assert main(["kernels", str(file), "--arch", "sm_1"]) == 2
    assert "does not compile for 'sm_1'" in capsys.readouterr().err


def test_the_command_without_nvrtc_says_what_to_install(file, capsys, monkeypatch):
    monkeypatch.setattr(toolkit, "_pathfinder", lambda: None)
    monkeypatch.setattr(nvrtc, "architectures", toolkit.nvrtc_library.__wrapped__)
    assert main(["kernels", str(file)]) == 2
    assert 'pip install "tinygrad_helix[test-cuda]"' in capsys.readouterr().err
