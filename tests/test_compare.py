"""compare(): rows, checks, JSON, pictures, and what it refuses."""

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix import report as reporting
from tinygrad_helix.language import compare_language_model, parse_policy
from tinygrad_helix.viz import text_timeline

RNG = np.random.default_rng(7)


def leaf(*shape, dtype="float32"):
    return th.Tensor(RNG.standard_normal(shape).astype(dtype), requires_grad=True)


def by_ops(x, w):
    return (x @ w).silu()


def by_hand(x, w):
    z = x @ w
    return z * z.sigmoid()


def wrong(x, w):
    return (x @ w).silu() + (x.detach() * 0.01).sum()


def wrong_gradient(x, w):
    return (
        x @ w.detach() + (x.detach() @ w) * 1.01 - x.detach() @ w.detach() * 1.01
    ).silu()


class TwoCopies(th.Op):
    """Keeps a copy of x in its node, off the tape."""

    @staticmethod
    def forward(xp, x, *, needs, box):
        box.append(x.copy())
        return x + 0, {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs, box):
        return (dy,)


class NanGradient(th.Op):
    """Zero, with a gradient of NaN."""

    @staticmethod
    def forward(xp, x, *, needs):
        return x * 0, {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        return (dy * np.nan,)


@pytest.fixture(scope="module")
def two():
    return th.compare(
        {"by_ops": by_ops, "by_hand": by_hand},
        {"x": leaf(16, 8), "w": leaf(8, 8)},
        parameters=("w",),
        repeats=2,
    )


def test_rows_hold_what_the_variants_keep(two):
    first, second = two.rows
    assert (first.variant, first.ops, first.nodes) == ("by_ops", 2, 2)
    assert first.saved_bytes == {"predicted": None, "counted": 1024, "measured": 1024}
    assert second.saved_bytes == {"predicted": None, "counted": 1536, "measured": 1536}
    assert first.max_rel_grad_diff == 0.0
    assert 0 < second.max_rel_grad_diff < 1e-6
    assert set(second.grads) == {"x", "w"}
    assert max(second.grads.values()) < 1e-6
    assert first.loss == pytest.approx(second.loss, rel=1e-6)
    assert first.mode is None
    assert first.policy is None
    assert first.fwd_ms > 0
    assert first.bwd_ms > 0
    assert first.step_ms["min"] <= first.step_ms["median"]
    assert two.check() == []


def test_a_wrong_gradient_is_found():
    report = th.compare(
        {"right": by_ops, "wrong": wrong_gradient},
        {"x": leaf(8, 4), "w": leaf(4, 4)},
        repeats=1,
    )
    (found,) = report.check()
    assert found.startswith("block, wrong: gradients differ from right by 1.0e-02")


def test_nan_gradients_do_not_pass():
    report = th.compare(
        {"right": lambda x: (x * x).sum(), "nan": lambda x: (x * x * float("nan")).sum()},
        {"x": leaf(3)},
        repeats=1,
    )
    assert len(report.check()) == 2, "values and gradients"
    row = report.rows[1]
    assert np.isnan(row.max_rel_grad_diff)
    data = json.dumps(report.to_json(), allow_nan=False)
    assert json.loads(data)["rows"][1]["max_rel_grad_diff"] is None


@pytest.mark.parametrize("order", [1, -1])
def test_one_nan_among_several_gradients_does_not_pass(order, tmp_path):
    def right(x, w):
        return (x * x).sum() + (w * w).sum()

    def nan(x, w):  # the gradient of w alone, by a product that adds nothing
        return (x * x).sum() + (w * w).sum() + th.apply(NanGradient, w).sum()

    inputs = dict(list({"x": leaf(3), "w": leaf(3)}.items())[::order])
    report = th.compare({"right": right, "nan": nan}, inputs, repeats=1, out=tmp_path)
    (found,) = report.check()
    assert found.startswith("block, nan: gradients differ from right by nan")
    text = (tmp_path / "report.json").read_text()
    row = json.loads(text, parse_constant=pytest.fail)["rows"][1]
    assert row["max_rel_grad_diff"] is None
    assert row["grads"]["w"] is None
    assert row["grads"]["x"] < 1e-6


def test_a_wrong_value_is_found():
    report = th.compare(
        {"right": lambda x: x * x, "wrong": lambda x: x * x + 100},
        {"x": leaf(8, 4)},
        repeats=1,
    )
    (found,) = report.check()
    assert found.startswith("block, wrong: values differ from right by ")
    assert report.rows[0].max_rel_value_diff == 0.0
    assert report.rows[1].max_rel_value_diff > 1
    assert "values" in str(report)


def test_equal_infinities_agree():
    mask = np.array([0, -np.inf, 0], np.float32)
    fns = {"a": lambda x: x * 1 + mask, "b": lambda x: mask + x}
    with np.errstate(invalid="ignore"):
        report = th.compare(fns, {"x": leaf(3)}, cotangent=np.ones(3), repeats=1)
    assert [r.max_rel_value_diff for r in report.rows] == [0.0, 0.0]


def test_functions_that_close_over_float32_parameters():
    lin = th.nn.Linear(4, 3)
    x = leaf(5, 4)
    report = th.compare({"a": lambda x: lin(x)}, {"x": x}, repeats=1)
    assert report.check() == []
    assert report.rows[0].grads == {}
    assert str(report).splitlines()[-1].endswith("  -")
    assert [p.grad for p in lin.parameters()] == [None, None]
    assert x.grad is None


def test_leaves_that_a_variant_closes_over_get_no_gradient():
    w, x = leaf(4), leaf(4)
    w.grad = kept = th.ones(4)
    report = th.compare({"f": lambda x: (x * w).sum()}, {"x": x}, repeats=1)
    assert report.check() == [
        "block, f: 32 saved bytes counted, 16 measured: 16 are held elsewhere too, by what "
        "the variant closes over, say. Make it an input or an nn.Parameter."
    ]
    assert w.grad is kept
    assert w.grad.tolist() == [1, 1, 1, 1]
    assert x.grad is None


def test_the_callers_graph_is_left_alone():
    base = leaf(4)
    x = base.exp()  # a result: its graph is the caller's
    seen = []
    x.register_hook(seen.append)
    report = th.compare({"f": lambda x: (x * x).sum()}, {"x": x}, repeats=1)
    assert report.rows[0].nodes == 2
    assert base.grad is None
    assert seen == []
    x.sum().backward()
    assert base.grad is not None


def test_scratch_that_stays_is_told():
    pool = []

    def fn(x):
        pool.append(np.empty(1000, np.float32))
        return (x * x).sum()

    report = th.compare({"pools": fn, "not": lambda x: (x * x).sum()}, {"x": leaf(4)},
                        repeats=1)  # fmt: skip
    kept = report.rows[0].workspace_bytes
    assert kept >= 4000
    line = (
        f"pools: {kept:,} bytes stay allocated after the step: scratch, or copies kept "
        "outside the tape"
    )
    assert line in str(report).splitlines()
    assert str(report).count("stay allocated") == 1
    assert line in report._repr_html_()


def test_names_are_escaped_in_a_notebook():
    report = th.compare({"<b>&": lambda x: x * x}, {"x": leaf(4)}, repeats=1)
    html = report._repr_html_()
    assert "<b>" not in html
    assert "&lt;b&gt;&amp;" in html


def test_the_report_says_what_it_was_made_with(two):
    config = two.to_json()["config"]
    assert config["versions"]["numpy"] == np.__version__
    assert set(config["versions"]) == {"tinygrad_helix", "python", "numpy"}
    assert set(config["machine"]) == {"platform", "cores"}


def test_against_other_settings_or_without_a_variant(two):
    old = two.to_json()
    old["config"]["dtype"] = "float64"
    old["rows"].append(old["rows"][0] | {"variant": "gone"})
    assert two.against(old) == [
        "config: dtype is 'float32' and was 'float64': the bytes of the two reports are "
        "not comparable.",
        "rows, gone: it is in the earlier report and missing now.",
    ]


def test_bytes_outside_the_tape_are_found():
    def fn(x):
        class Box(list):
            __hash__ = object.__hash__

        return th.apply(TwoCopies, x * x, box=Box()).sum()

    report = th.compare({"hidden": fn}, {"x": leaf(8, 8)}, repeats=1)
    (found,) = report.check()
    assert found == (
        "block, hidden: 256 saved bytes counted, 512 measured: 256 are kept outside the "
        "tape."
    )


def test_a_wrong_prediction_is_found():
    report = th.compare(
        {"square": lambda x: (x * x).sum()},
        {"x": leaf(4)},
        predicted={"square": 20},
        repeats=1,
    )
    assert report.check() == ["block, square: 20 saved bytes predicted, 16 counted."]


def test_an_op_that_states_its_bytes_is_predicted():
    class Cube(th.Op):
        saves = {"x": th.Input(0)}

        @staticmethod
        def forward(xp, x, *, needs):
            return x**3, {"x": x}

        @staticmethod
        def vjp(dy, saved, *, needs, inputs):
            return (dy * 3 * saved["x"] ** 2,)

        @staticmethod
        def predict(inputs, needs):
            (shape, dtype) = inputs[0]
            return {"x": int(np.prod(shape)) * dtype.itemsize}

    report = th.compare({"cube": lambda x: th.apply(Cube, x)}, {"x": leaf(5)}, repeats=1)
    assert report.rows[0].saved_bytes == {"predicted": 20, "counted": 20, "measured": 20}


def test_the_callers_gradients_are_left_alone():
    x = leaf(3)
    x.grad = th.ones(3)
    th.compare({"f": lambda x: (x * x).sum()}, {"x": x}, repeats=1)
    assert x.grad.tolist() == [1, 1, 1]


def test_json_and_pictures(two, tmp_path):
    paths = two.save(tmp_path / "new" / "folder")
    data = json.loads(paths[0].read_text())
    assert data["schema"] == "tinygrad_helix.compare/1"
    assert data["reference"] == "by_ops"
    fields = set(data["rows"][0])
    assert fields >= {
        "variant", "mode", "policy", "ops", "nodes", "saved_tensors", "storages",
        "saved_bytes",
        "peak_bytes", "peak_at", "transient_bytes", "workspace_bytes", "no_grad_peak_bytes",
        "fwd_ms", "bwd_ms", "step_ms", "loss", "max_rel_grad_diff", "grads",
    }  # fmt: skip
    assert set(data["rows"][0]["peak_at"]) == {"phase", "node", "label"}
    assert any(path.name.startswith("timeline") for path in paths)


def test_timeline_picture(two, tmp_path):
    pytest.importorskip("matplotlib", reason="needs matplotlib (pip install .[viz])")
    paths = two.save(tmp_path)
    png, svg, pdf = (p for p in paths if p.stem == "timeline")
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    ElementTree.parse(svg)
    assert pdf.read_bytes().startswith(b"%PDF")


def test_timeline_without_matplotlib(two, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    paths = two.save(tmp_path)
    assert paths[-1].name == "timeline.txt"
    assert "by_hand" in paths[-1].read_text(encoding="utf-8")


def test_text_timeline_fits_and_has_an_ascii_form(two):
    text = text_timeline(two.events)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("kB") == 2
    assert text_timeline(two.events, ascii_only=True).isascii()


def test_tables(two):
    text = str(two)
    assert "1,536" in text
    assert max(map(len, text.splitlines())) <= 100
    html = two._repr_html_()
    assert html.count("<table>") == 2
    assert "by_hand" in html


def test_against_an_earlier_report(two):
    old = two.to_json()
    assert two.against(old) == []
    old["rows"][1]["saved_bytes"]["counted"] = 1024
    assert two.against(old) == ["rows, by_hand: saved bytes rose, 1,024 to 1,536."]
    old = two.to_json()
    old["rows"][0]["peak_bytes"] = -(10**6)
    assert len(two.against(old)) == 1


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: th.compare({}, {"x": x}), TypeError, "at least one"),
        (lambda x: th.compare({"f": 3}, {"x": x}), TypeError, "variant 'f' is no function"),
        (lambda x: th.compare({"f": by_ops}, [x]), TypeError, "inputs as a dict"),
        (
            lambda x: th.compare({"f": by_ops}, {"x": x.detach()}),
            RuntimeError,
            "no input of compare requires a gradient",
        ),
        (
            lambda x: th.compare({"f": lambda x: x}, {"x": x}, reference="g"),
            RuntimeError,
            "'g' is no variant. Choose of: f",
        ),
        (
            lambda x: th.compare({"f": lambda x: x.detach()}, {"x": x}),
            RuntimeError,
            "variant 'f' returned a Tensor of shape .* requires no gradient",
        ),
        (lambda x: th.compare({"f": lambda x: 3}, {"x": x}), RuntimeError, "returned int"),
        (
            lambda x: th.compare({"f": lambda x: x * 1, "g": lambda x: x.sum()}, {"x": x}),
            ValueError,
            r"'g' returned shape \(\), 'f' \(3,\)",
        ),
        (
            lambda x: th.compare({"f": lambda x: x * 1}, {"x": x}, parameters=("w",)),
            RuntimeError,
            "parameters names w",
        ),
        (
            lambda x: th.compare({"f": lambda x: x * 1}, {"x": x}, repeats=0),
            ValueError,
            "repeats=0",
        ),
        (
            lambda x: th.compare({"f": lambda x: x * 1}, {"x": x}, device="cuda"),
            RuntimeError,
            "cuda is not available",
        ),
    ],
)
def test_bad_input(call, error, says):
    with pytest.raises(error, match=says) as caught:
        call(leaf(3))
    assert isinstance(caught.value, th.errors.HelixError)


def test_an_output_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(th.errors.HelixError, match=r"file.* cannot be written to"):
        reporting.output_folder(tmp_path / "file")
    with pytest.raises(th.errors.HelixError, match="cannot be written to"):
        th.compare({"f": lambda x: x * 1}, {"x": leaf(3)}, out=tmp_path / "file" / "below")


# --- the language model


@pytest.fixture(scope="module")
def small():
    return compare_language_model(
        dim=8,
        layers=2,
        batch=2,
        seq=6,
        steps=1,
        warmup=1,
        policies=("keep9", "keep6", "keep1"),
    )


def test_language_model_bytes_agree_by_block_and_whole(small):
    assert small.check() == []
    unit = 2 * 6 * 8 * 4
    by_name = {r.variant: r for r in small.rows}
    for name, k in (
        ("composed", 15),
        ("fused keep9", 9),
        ("fused keep6", 6),
        ("fused keep1", 1),
    ):
        assert by_name[name].saved_bytes == {
            "predicted": k * unit, "counted": k * unit, "measured": k * unit,
        }  # fmt: skip
    assert [r.variant for r in small.model] == list(by_name)
    for r in small.model:
        assert len(set(r.saved_bytes.values())) == 1
    whole = {r.variant: r.saved_bytes["counted"] for r in small.model}
    assert whole["composed"] - whole["fused keep9"] == 2 * 6 * unit
    assert by_name["composed"].ops == 18
    assert by_name["composed"].nodes == 20
    assert by_name["fused keep6"].nodes == 1
    assert (by_name["fused keep6"].mode, by_name["fused keep6"].policy) == (
        "fused",
        "keep6",
    )
    assert by_name["composed"].policy is None


def test_language_model_variants_train_alike(small):
    losses = [r.loss for r in small.model]
    assert max(losses) - min(losses) < 1e-4
    assert np.log(256) * 0.9 < losses[0] < np.log(256) * 1.1
    assert small.config["parameters"] == 256 * 8 + 2 * (7 * 64 + 40) + 8
    assert small.config["text_bytes"] > 10_000
    assert len(small.config["text_sha256"]) == 64


def test_policies_on_the_command_line():
    assert parse_policy("keep4") == "keep4"
    assert parse_policy("keep(x, a)").name == "keep(x,a)"
    assert parse_policy("budget(4MB)").name == parse_policy("budget(4000000)").name


@pytest.mark.parametrize("name", ["dim", "layers", "batch", "seq", "steps"])
def test_language_model_sizes(name):
    with pytest.raises(ValueError, match=f"{name}=0: it must be at least 1"):
        compare_language_model(**{name: 0})
