"""Errors explained: every page's lines raise its error, and the mended lines run."""

import inspect
import json
import pickle
import traceback
from pathlib import Path

import pytest

import tinygrad_helix as th
from tinygrad_helix import errors
from tinygrad_helix.cli import main
from tinygrad_helix.explanations import EXPLANATIONS, explanations_of
from tinygrad_helix.targets import TargetError

PACKAGE = Path(th.__file__).parent


def has_cuda():
    try:
        th.ones(1, device="cuda")
    except errors.BackendUnavailableError:
        return False
    return True


@pytest.fixture(params=EXPLANATIONS, ids=str)
def page(request):
    page = EXPLANATIONS[request.param]
    if page.needs and (page.needs == "cuda") != has_cuda():
        pytest.skip(f"the lines raise their error only with {page.needs}")
    return page


def test_the_lines_raise_exactly_their_error_and_the_last_statement_does(page):
    assert len(page.lines.splitlines()) <= 5
    code = compile(page.lines, "page", "exec")
    with pytest.raises(errors.HelixError) as caught:
        exec(code, {"__name__": "page"})
    assert type(caught.value) is page.error


def test_the_mended_lines_run(page):
    exec(compile(page.fixed_lines, "page", "exec"), {"__name__": "page"})


@pytest.mark.parametrize("page", EXPLANATIONS.values(), ids=EXPLANATIONS)
def test_pages_are_short_and_whole(page):
    for text in (page.cause, page.fix):
        assert text.endswith(".") and len(text) < 400
    for lines in (page.lines, page.fixed_lines):
        assert "import tinygrad_helix as th" in lines
        assert max(map(len, lines.splitlines())) <= 75
    assert page.lines != page.fixed_lines


def raised():
    """The classes of errors that the package raises somewhere."""
    source = "".join(p.read_text(encoding="utf-8") for p in PACKAGE.rglob("*.py"))
    return [name for name in errors.__all__ if f"raise {name}(" in source]


def test_every_class_of_error_that_is_raised_has_a_page():
    classes = {name for name, c in vars(errors).items() if inspect.isclass(c)}
    assert classes == set(errors.__all__)
    explained = {page.error.__name__ for page in EXPLANATIONS.values()}
    assert len(raised()) >= 11 and set(raised()) <= explained


# --- the note below a message


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_names_its_page_below_its_message(name):
    error = getattr(errors, name)("what happened.")
    assert str(error) == "what happened."
    shown = "".join(traceback.format_exception(error))
    if name == "HelixError":
        assert "explain" not in shown
    else:
        assert shown.endswith(f"what happened.\nSee: tinygrad-helix explain {name}\n")


def test_errors_of_other_modules_and_of_users_name_the_page_of_their_base():
    class Mine(errors.ShapeError):
        pass

    assert Mine("x").__notes__ == ["See: tinygrad-helix explain ShapeError"]
    assert not hasattr(TargetError("x"), "__notes__")


def test_an_error_that_was_pickled_has_one_note():
    error = pickle.loads(pickle.dumps(errors.ShapeError("x")))
    assert str(error) == "x"
    assert error.__notes__ == ["See: tinygrad-helix explain ShapeError"]


def test_a_traceback_of_a_user(tmp_path):
    x = th.tensor([1.0], requires_grad=True)
    y = x * x
    y.backward()
    with pytest.raises(errors.SavedTensorsFreedError) as caught:
        y.backward()
    last = traceback.format_exception_only(caught.value)[-1]
    assert last == "See: tinygrad-helix explain SavedTensorsFreedError\n"


# --- the command


@pytest.mark.parametrize("name", [*EXPLANATIONS, *raised()])
def test_explain_prints_cause_lines_and_fix(name, capsys):
    assert main(["explain", name]) == 0
    out = capsys.readouterr().out
    pages = explanations_of(name)
    assert pages
    for kind, page in pages.items():
        assert f"{kind}: {page.error.__name__}" in out
        for lines in (page.lines, page.fixed_lines):
            assert all(line in out for line in lines.splitlines())
        flat = " ".join(out.split())
        assert page.cause in flat and page.fix in flat
    assert max(map(len, out.splitlines())) <= 79


def test_one_page_as_it_is_printed(capsys):
    assert main(["explain", "Non-Scalar"]) == 0
    assert (
        capsys.readouterr().out
        == """\
non-scalar: NonScalarBackwardError

A sweep starts with a cotangent dy of the output's shape. For a single number
that is 1; for more elements nobody but you can say what it is to be.

These lines raise it:

    import tinygrad_helix as th
    x = th.tensor([1.0, 2.0], requires_grad=True)
    y = x * x
    y.backward()

Reduce to one number, or pass the cotangent (a Tensor or an array).

    import tinygrad_helix as th
    x = th.tensor([1.0, 2.0], requires_grad=True)
    y = x * x
    y.backward(th.ones(2), retain_graph=True)
    y.sum().backward()  # the same again
"""
    )


def test_without_an_error_all_are_listed(capsys):
    assert main(["explain"]) == 0
    out = capsys.readouterr().out
    words = out.replace(",", " ").split()
    assert set(EXPLANATIONS) <= set(words)
    assert max(map(len, out.splitlines())) <= 79


def test_an_unknown_error_lists_what_there_is(capsys):
    assert main(["explain", "NoSuchError"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "no explanation of 'NoSuchError'" in err
    assert all(kind in err for kind in EXPLANATIONS)


def test_json(capsys):
    assert main(["explain", "ShapeError", "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data) == set(explanations_of("ShapeError"))
    for kind, page in data.items():
        assert page["error"] == "ShapeError"
        assert "\n".join(page["lines"]) == EXPLANATIONS[kind].lines


def test_a_command_that_fails_names_the_page(capsys, tmp_path):
    file = tmp_path / "block.py"
    file.write_text(
        "import tinygrad_helix as th\n"
        "def composed(x):\n    return x @ x\n"
        "def inputs():\n    return {'x': th.ones(2, 3, requires_grad=True)}\n"
    )
    assert main(["compare", str(file), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.endswith("See: tinygrad-helix explain ShapeError\n")
