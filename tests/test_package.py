"""The package as installed: what an import pulls in, what a wheel carries, the layering."""

import ast
import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tinygrad_helix as th

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tinygrad_helix"


def python(code, cwd, *flags):
    return subprocess.run(
        [sys.executable, *flags, "-c", code],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_import_needs_numpy_alone():
    # https://github.com/cupy/cupy/issues/1790: unusable on a machine without CUDA
    blocked = [
        "cupy", "matplotlib", "tqdm", "graphviz", "threadpoolctl", "torch", "scipy",
        "safetensors",
    ]  # fmt: skip
    code = (
        f"import sys\nfor name in {blocked}: sys.modules[name] = None\n"
        "import tinygrad_helix as th\n"
        "x = th.ones(3, requires_grad=True); (x * x).sum().backward()\n"
        "assert x.grad.tolist() == [2, 2, 2]\n"
        "th.helix_block, th.nn.HelixLM, th.optim.AdamW\n"
    )
    result = python(code, ROOT)
    assert result.returncode == 0, result.stderr


def test_no_environment_variable_is_read():
    asked = 'os.environ.get("NO_COLOR")'  # whether a terminal shows colours, no result
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path == PACKAGE / "commands" / "output.py":
            assert text.count(asked) == 1
            text = text.replace(asked, "")
        assert "os.environ" not in text, f"{path}: results must not depend on it"
        assert "getenv" not in text, f"{path}: results must not depend on it"


def test_version_and_names():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert th.__version__ == project["version"]
    assert (PACKAGE / "py.typed").exists()
    for name in th.__all__:
        assert hasattr(th, name), name


def installed_files():
    try:
        files = importlib.metadata.files("tinygrad_helix") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return {str(f) for f in files}


def test_the_wheel_carries_tutorials_types_and_the_command(tmp_path):
    files = installed_files()
    if files is None or "tinygrad_helix/__init__.py" not in files:
        pytest.skip(
            "tinygrad_helix is not installed from a wheel (python -m pip install .)"
        )
    assert "tinygrad_helix/tutorials/swiglu.py" in files
    assert "tinygrad_helix/tutorials/figures/01_chain_rule.svg" in files
    assert "tinygrad_helix/py.typed" in files
    assert "tinygrad_helix/viz/template.html" in files
    assert not any(f.startswith("tests/") for f in files)
    code = (
        "import tinygrad_helix, tinygrad_helix.cli as cli, sys\n"
        "sys.exit(cli.main(['info', '--json', '-']))"
    )
    result = python(code, tmp_path, "-I")  # isolated: neither this folder nor PYTHONPATH
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["tinygrad_helix"] == th.__version__


def test_no_file_is_too_long_and_imports_go_one_way():
    order = [
        "errors", "files", "explanations", "modes", "meter", "backend", "memory", "tape",
        "tensor", "differentiate", "walk", "op", "kernels", "create", "ops", "alive",
        "accounting",
        "scratch", "gradcheck", "audit", "fused", "nn", "optim", "data", "io",
        "tables", "viz", "report", "compare", "language", "targets", "tutorial",
        "commands", "cli",
    ]  # fmt: skip
    place = {name: i for i, name in enumerate(order)}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= (600 if parts[0] == "fused" else 400), f"{path} has {lines} lines"
        if parts[0] not in place:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            base = list(parts[: len(parts) - node.level]) + (node.module or "").split(".")
            names = [base[0]] if base[0] else [alias.name for alias in node.names]
            for name in names:
                if name in place and name != parts[0]:
                    assert place[name] < place[parts[0]], f"{path} imports {name}"
