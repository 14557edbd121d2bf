"""Errors in a user's own code say where they come from: op, function, file and line."""

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix import cli
from tinygrad_helix.errors import DTypeError, GraphError
from tinygrad_helix.viz.reader import read


class Leaky(th.Op):
    saves = {"positive": th.Constant()}

    @staticmethod
    def forward(xp, x, *, needs):
        positive = x > 0
        return xp.where(positive, x, x / 10), {"positive": positive if needs[0] else None}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (np.where(saved["positive"], dy, dy / 10),)  # of arrays alone


class Expm1(th.Op):
    saves = {"y": th.Output()}

    @staticmethod
    def forward(xp, x, *, needs):
        y = xp.expm1(x)
        return y, {"y": y}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (dy * np.exp(np.log1p(saved["y"])),)


@pytest.mark.parametrize("op", [Leaky, Expm1])
def test_a_vjp_that_cannot_be_recorded_is_named(op):
    x = th.tensor([-1.0, 2.0], requires_grad=True)
    y = (th.apply(op, x) ** 2).sum()
    with pytest.raises((GraphError, TypeError)) as caught:
        th.grad(y, [x], create_graph=True)
    note = " ".join(caught.value.__notes__)
    assert f"raised by the vjp of {op.name} (node " in note
    assert f"{__file__}:" in note
    assert "A vjp under create_graph gets Tensors: use the functions of" in note
    assert "tinygrad_helix.ops" in note


def test_a_vjp_that_raises_in_a_plain_sweep_is_named_too():
    class Raises(Leaky):
        @staticmethod
        def vjp(dy, saved, *, needs, inputs):
            raise ValueError("my own")

    x = th.tensor([-1.0, 2.0], requires_grad=True)
    with pytest.raises(ValueError, match=r"^my own(\n|$)") as caught:
        th.apply(Raises, x).sum().backward()
    (note,) = caught.value.__notes__
    assert note.startswith("It was raised by the vjp of raises (node ")
    assert "create_graph" not in note


def test_an_audit_names_the_line_of_the_class():
    class Hoards(Leaky):
        saves = {**Leaky.saves, "more": th.Intermediate()}

        @staticmethod
        def forward(xp, x, *, needs):
            y, saved = Leaky.forward(xp, x, needs=needs)
            return y, saved | {"more": x + 1}

    first = Hoards.forward.__code__.co_firstlineno - 3  # the line of `class Hoards`
    report = th.audit(Hoards, th.ones(3, requires_grad=True))
    assert not report.ok
    assert f"(class Hoards at {__file__}:{first})" in str(report)


# --- targets

HEAD = """import tinygrad_helix as th
def inputs():
    return {"x": th.ones(2, requires_grad=True)}
"""


@pytest.mark.parametrize("command", ["compare", "graph", "walk"])
def test_an_error_of_this_package_names_the_function_and_its_line(
    command, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.py"
    file.write_text(HEAD + "def composed(x):\n    return (x * x).numpy().sum()\n")
    assert cli.main([command, "mine.py"]) == 2
    said = capsys.readouterr().err
    assert "numpy() of a Tensor that requires a gradient" in said
    assert "In composed() of 'mine.py', at " in said
    assert "mine.py:5." in said


@pytest.mark.parametrize("arguments", ["rng", "rng, N=3", "*, rng", "rng, /"])
def test_inputs_without_defaults(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = HEAD.replace("inputs()", f"inputs({arguments})")
    (tmp_path / "mine.py").write_text(text + "def composed(x):\n    return x * x\n")
    assert cli.main(["graph", "mine.py"]) == 2
    said = capsys.readouterr().err
    assert "inputs() of 'mine.py' is called without rng." in said
    assert "Every argument of inputs() needs a default" in said
    status = cli.main(["graph", "mine.py", "--set", "rng=0"])
    assert status == (2 if "/" in arguments else 0)


def test_an_unknown_option_shows_the_usage_of_its_command(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["walk", "--nonsense", "--more"])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: tinygrad-helix walk ")
    assert "unrecognized arguments: --nonsense --more" in said


# --- names


def test_names_that_name_nothing_are_refused():
    y = th.ones(3, requires_grad=True).exp()
    with pytest.raises(DTypeError, match=r"names has no Tensor.*\(int, str\)"):
        th.draw(y, names={"a": 3, "b": "x"})
    assert th.draw(y, names={"a": 3, "y": y}).graph.nodes[0].names == ("y",)  # locals()
    assert th.draw(y, names={}).graph.caption


def test_a_name_is_escaped_alike_everywhere():
    x = th.ones(3, requires_grad=True)
    y = x.exp()
    text = th.draw(y, names={"a\nb": x, "c\nd": y}).text()
    assert "a�b 3" in text
    assert "exp(a�b)" in text
    assert "c�d = exp" in text


def test_tokens_and_targets_have_their_names(capsys):
    small = ["--batch", "2", "--seq", "3", "--dim", "4"]
    assert cli.main(["graph", "--layers", "1", *small]) == 0
    out = capsys.readouterr().out
    assert "HelixLM of 1 block, composed" in out
    assert "tokens 2×3, targets 2×3" in out


def test_a_constant_is_named_by_the_array_that_the_op_keeps():
    w = th.randn(5, 2, requires_grad=True)
    rows = th.Tensor(np.array([0, 3, 3]))
    graph = read(th.embedding(w, rows), {"w": w, "rows": rows}).graph
    leaves = [(x.name, x.kind) for x in graph.leaves]
    assert leaves == [("w", "input"), ("rows", "constant")]
