"""The one-file report: traces against the sweep, answers, dial, pictures, and the page."""

import csv
import importlib
import io
import json
import re
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_helix as th
from tinygrad_helix import cli, language
from tinygrad_helix.accounting import profile
from tinygrad_helix.fused.policy import KEEPABLE, WEIGHTS, Call, extra_flops, kept
from tinygrad_helix.scratch import scratch
from tinygrad_helix.tables import latex, markdown, spread
from tinygrad_helix.viz import answers, lanes, panels
from tinygrad_helix.viz.bands import draw_bands, round_steps
from tinygrad_helix.viz.dial import dial_data, frontier, number_of, set_of
from tinygrad_helix.viz.markup import escape, script_json, table
from tinygrad_helix.viz.report import page
from tinygrad_helix.viz.trace import LIVE, NODE, PEAK, PHASE, TAPE, describe, trace

compare = importlib.import_module("tinygrad_helix.compare")  # th.compare is the function
POLICIES = ("keep9", "keep6", "keep1", th.Keep("x", "a", "out1"))


@pytest.fixture(scope="module")
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "PAUSE", 0)
        patch.setattr(language, "PAUSE", 0)
        return language.compare_language_model(
            dim=8, layers=2, batch=2, seq=6, steps=1, warmup=0, policies=POLICIES
        )


@pytest.fixture(scope="module")
def html(small):
    return page(small.to_json(), small.traces, small.dial, small.check())


def leaf(*shape, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    return th.Tensor(rng.standard_normal(shape).astype(dtype), requires_grad=True)


def of_page(text):
    """The data that a page carries."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(found[1])


class Page(HTMLParser):
    """The elements of a page; raises if they are not nested as they must be."""

    EMPTY = {"meta", "link", "input", "br"}
    DRAWN = {"path", "rect", "circle", "use"}  # closed by themselves inside svg

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), tuple(self.open)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in self.DRAWN, tag
        self.elements.append((tag, dict(attrs), tuple(self.open)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"{tag} closes another element"

    def handle_data(self, data):
        if not {"script", "style"} & set(self.open):
            self.text.append(data)

    def of(self, tag, **attrs):
        return [a for t, a, _ in self.elements if t == tag and attrs.items() <= a.items()]


# --- the trace against the sweep itself


def branches(x, w):
    h = (x @ w).tanh()
    return (h * x + h.exp() * h).sum()


def nothing_saved(x, w):
    return (x + 1.0).sum() + w.sum()


def with_checkpoint(x, w):
    return th.checkpoint(lambda x, w: (x @ w).exp().tanh(), x, w).sum()


def several_results(x, w):
    h, last = th.gated_scan(x.sigmoid().reshape(1, 8, 8), (x @ w).reshape(1, 8, 8))
    return (h * h).sum() + last.sum()


@pytest.mark.parametrize(
    "fn",
    [branches, nothing_saved, with_checkpoint, several_results],
    ids=lambda f: f.__name__,
)
def test_a_trace_says_what_the_sweep_does(fn):
    inputs = {"x": leaf(8, 8), "w": leaf(8, 8, seed=1)}
    found = trace(profile(fn, inputs, describe=describe))
    y = fn(**inputs)
    counted = th.saved_bytes(y)
    steps = list(th.tape.steps(y))
    events = found["events"][found["forward"] :]
    by_id = {node["id"]: node["op"] for node in found["graph"]["nodes"]}
    assert [by_id[e[NODE]] for e in events] == [s.node.op.name for s in steps]
    assert [e[TAPE] for e in events] == [s.live_bytes for s in steps]
    storages = {s["id"]: s["nbytes"] for s in found["graph"]["storages"]}
    for i, e in enumerate(found["events"]):
        held = [s for s, (born, gone) in found["held"].items() if born <= i < gone]
        assert sum(storages[s] for s in held) == e[TAPE]
    for i, s in enumerate(steps, found["forward"]):
        freed = [k for k, (_, gone) in found["held"].items() if gone == i]
        assert sum(storages[k] for k in freed) == s.freed_bytes
    assert found["events"][found["forward"] - 1][TAPE] == counted
    assert events[-1][TAPE] == 0


def test_a_trace_and_the_row_agree(small):
    for key, rows in (("rows", small.rows), ("model", small.model)):
        for r in rows:
            found = small.traces[key][r.variant]
            events = found["events"]
            assert len(found["graph"]["nodes"]) == r.nodes
            assert events[found["peak"]["event"]][PEAK] == r.peak_bytes
            assert max(e[PEAK] for e in events) == r.peak_bytes
            assert found["graph"]["saved_bytes"] == r.saved_bytes["counted"]
            assert events[found["forward"] - 1][TAPE] == r.saved_bytes["counted"]
            assert {e[PHASE] for e in events[: found["forward"]]} == {0}
            peak = answers.Reader(found).peak()
            assert peak["when"].startswith(f"{r.peak_at['phase']} of {r.peak_at['node']}")
            if peak["held"]:
                most = answers.Reader(found).size(peak["held"][0])
                assert all(most >= answers.Reader(found).size(s) for s in peak["held"])
            assert peak["tape"] + peak["waiting"] + peak["rest"] == r.peak_bytes


def test_describing_the_graph_changes_no_measurement():
    inputs = {"x": leaf(64, 64), "w": leaf(64, 64, seed=1)}
    with_it = profile(branches, inputs, describe=describe)
    without = profile(branches, inputs)
    assert without.graph is None
    for name in ("counted", "measured", "workspace_bytes"):
        assert getattr(with_it, name) == getattr(without, name)
    for name in ("peak_bytes", "transient_bytes"):
        assert abs(getattr(with_it, name) - getattr(without, name)) < 4096


def test_nodes_that_no_sweep_reaches_are_freed_before_it():
    def fn(x):
        return (x * x).sum(), (x.exp() * 2.0).sum()

    found = trace(profile(fn, {"x": leaf(4)}, describe=describe))
    by_name = {s["name"]: s["id"] for s in found["graph"]["storages"]}
    assert found["held"][by_name["exp.y"]] == [2, found["forward"]]
    assert found["events"][-1][TAPE] == 0


def test_a_places_path_is_short_and_the_callers_line_is_told():
    found = trace(profile(branches, {"x": leaf(8, 8), "w": leaf(8, 8)}, describe=describe))
    node = found["graph"]["nodes"][0]
    assert node["place"].startswith("tests/test_html_report.py:")
    assert node["source"] == "h = (x @ w).tanh()"
    block = th.nn.HelixBlock(4)
    y = {"x": leaf(1, 3, 4)}
    found = trace(profile(lambda x: block(x), y, describe=describe))
    (node,) = found["graph"]["nodes"]
    assert node["place"].startswith("tinygrad_helix/nn/helix.py:")
    assert node["caller"].startswith("tests/test_html_report.py:")
    assert "lambda x: block(x)" in node["called"]


# --- answers


def test_the_node_that_frees_most_and_storages_with_two_holders():
    inputs = {"x": leaf(8, 8), "w": leaf(8, 8, seed=1)}
    reader = answers.Reader(trace(profile(branches, inputs, describe=describe)))
    steps = list(th.tape.steps(branches(**inputs)))
    most = max(steps, key=lambda s: s.freed_bytes)
    node, freed = reader.frees_most()
    assert freed == most.freed_bytes
    assert node.startswith(most.node.op.name)
    shared = {reader.storages[s]["name"]: reader.why(s) for s in reader.shared()}
    # h is tanh's result, and a factor of both products; x a factor of two, too
    assert shared["tanh.y"] == [
        "tanh n1 keeps it as y",
        "mul n2 keeps it as a",
        "mul n4 keeps it as b",
    ]
    assert shared["matmul.a"] == ["matmul n0 keeps it as a", "mul n2 keeps it as b"]
    names = {reader.storages[s]["name"]: reader.what(s) for s in reader.storages}
    assert names["matmul.a"] == "the input x"
    assert names["tanh.y"] == "the result of tanh n1"


def test_nothing_saved_is_said():
    reader = answers.Reader(trace(profile(nothing_saved, {"x": leaf(3), "w": leaf(3)},
                                          describe=describe)))  # fmt: skip
    assert reader.frees_most() == ("no node: nothing is saved", 0)
    assert reader.shared() == []
    assert reader.peak()["held"] == []


@pytest.mark.parametrize(
    ("error", "own", "bad", "says"),
    [
        (1e-7, 2e-7, False, "not worse"),
        (3e-7, 2e-7, False, "of the same size, 1.5×"),
        (2e-6, 2e-7, True, "worse, 10×"),
        (None, 2e-7, True, "not a number"),
        (1e-3, None, False, "not known: there is no float64 run"),
        (1e-16, 0, True, "worse: the reference is exact here"),
        (0, 0, False, "not worse"),
    ],
)
def test_verdicts_on_gradients(error, own, bad, says):
    assert answers.verdict(error, own) == (bad, says)


def test_the_worst_gradient_is_a_nan_if_there_is_one():
    row = {"grads": {"x": 1e-7, "w": None}, "grad_diffs": {}}
    assert answers.worst_gradient(row) == ("w", None)
    row = {"grads": {}, "grad_diffs": {"x": 2e-7, "w": 1e-7}}
    assert answers.worst_gradient(row) == ("x", 2e-7)
    assert answers.worst_gradient({"grads": {}, "grad_diffs": {}}) is None


def test_one_variant_against_another(small):
    rows = {r["variant"]: r for r in small.to_json()["rows"]}
    a, b = rows["fused keep6"], rows["fused keep9"]
    flops = {name: small.dial["flops"][n] for name, n in small.dial["measured"].items()}
    lines = {line[0]: line[1:] for line in answers.differences(a, b, flops)}
    unit = 2 * 6 * 8 * 4
    assert lines["saved for the backward pass"] == [
        f"{6 * unit:,} B", f"{9 * unit:,} B", f"−{3 * unit:,} B (−33.3 %)",
    ]  # fmt: skip
    call = Call((2, 6, 8), 4, frozenset(("x", *WEIGHTS)))
    extra = extra_flops(call, set_of(small.dial["policies"]["keep6"]))
    assert lines["FLOPs repeated in the backward pass"][2] == f"+{extra:,}"
    assert answers.pair(list(rows.values())) == ("fused keep6", "fused keep9")
    unfused = [rows["composed"], rows["primitive"]]
    assert answers.pair(unfused) == ("primitive", "composed")


# --- the dial


@pytest.mark.parametrize("wanted", [("x", *WEIGHTS), ("x",), ("wf2", "g4")])
def test_the_dial_has_the_numbers_of_every_set(wanted):
    call = Call((2, 5, 4), 8, frozenset(wanted))
    data = dial_data(call, {"mine": ("x", "f1")})
    assert len(data["bytes"]) == len(data["flops"]) == 128
    for n in range(128):
        names = set_of(n)
        assert number_of(names) == n
        assert names == th.Keep(*names).names
        assert data["bytes"][n] == sum(kept(call, names).values())
        assert data["flops"][n] == extra_flops(call, names)
    assert data["measured"] == {"mine": number_of(("f1",))}


def test_the_dial_has_the_bytes_that_the_tape_holds(small):
    w = dict(th.nn.HelixBlock(8).named_parameters())
    rng = np.random.default_rng(3)
    for n in rng.choice(128, 12, replace=False):
        y = th.helix_block(leaf(2, 6, 8), **w, policy=th.Keep(*set_of(n)))
        assert th.saved_bytes(y) == small.dial["bytes"][n]


def test_the_frontier_is_what_no_set_beats():
    data = dial_data(Call((2, 5, 4), 4, frozenset(("x", *WEIGHTS))), {})
    costs = list(zip(data["bytes"], data["flops"], strict=True))
    front = frontier(data)
    for n, (size, flops) in enumerate(costs):
        beaten = any(s <= size and f <= flops and (s, f) != (size, flops) for s, f in costs)
        assert beaten == ((size, flops) not in [costs[i] for i in front]), set_of(n)


# --- pictures


def test_every_variant_is_drawn_once_with_all_its_nodes(small, html):
    found = Page(html)
    cards = found.of("article", **{"class": "card"}) + found.of(
        "article", **{"class": "card tall"}
    )
    assert len(cards) == 2 * len(small.rows)
    assert len(found.of("svg", **{"class": "lanes"})) == len(cards)
    assert len(found.of("svg", **{"class": "bands"})) == len(cards)
    nodes = [a["data-node"] for _, a, _ in found.elements if "data-node" in a]
    graphs = [t["graph"] for key in ("rows", "model") for t in small.traces[key].values()]
    assert sorted(nodes) == sorted(n["id"] for g in graphs for n in g["nodes"])
    assert len(nodes) == sum(g["tape_nodes"] for g in graphs)
    edges = [a for _, a, _ in found.elements if "data-from" in a]
    parameters = {x["id"] for x in graphs[0]["leaves"] if x["kind"] != "input"}
    drawn = [e for e in graphs[0]["edges"] if e["source"] not in parameters]
    assert {(e["source"], e["target"]) for e in drawn} <= {
        (a["data-from"], a["data-to"]) for a in edges
    }


def test_the_bytes_beside_the_nodes_add_up(small):
    for name, found in small.traces["rows"].items():
        text = lanes.draw_lanes(found["graph"], name)
        kept = re.findall(r'class="kept".*?class="num"[^>]*>([^<]+)<', text)
        sizes = [int(size[:-2].replace(",", "")) for size in kept if size != "shared"]
        assert sum(sizes) == found["graph"]["saved_bytes"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=3), max_size=25))
def test_lanes_of_values_in_use_never_meet(uses):
    """Random graphs: node i reads some earlier nodes, or the input."""
    tensors = [leaf(2)]
    for reads in uses:
        y = tensors[reads[0] % len(tensors)] * 1.0
        for r in reads[1:]:
            y = y + tensors[r % len(tensors)]
        tensors.append(y)
    total = tensors[0] * 1.0
    for t in tensors[1:]:
        total = total + t
    graph = describe([total], {"x": tensors[0]}).to_json()
    drawing = lanes._Drawing(graph)
    at = {item["id"]: i for i, (kind, item) in enumerate(drawing.rows) if kind != "head"}
    last = dict(at)
    for e in graph["edges"]:
        if e["source"] in at:
            last[e["source"]] = max(last[e["source"]], at[e["target"]])
    assert drawing.lane.keys() == at.keys()
    for a in at:
        for b in at:
            if a < b and drawing.lane[a] == drawing.lane[b]:
                assert last[a] <= at[b] or last[b] <= at[a]
    assert drawing.left < lanes.WIDTH / 2 + 20


def test_words_of_a_row_do_not_overlap():
    """Long names of ops, parameters and inputs are cut to the width that there is."""

    class AnOpWithAVeryLongNameThatGoesOnAndOnAndOnAndOn(th.Op):
        @staticmethod
        def forward(xp, x, *ws, needs):
            return x + sum(ws), {}

        @staticmethod
        def vjp(dy, saved, *, needs, inputs):
            return (dy,) * len(inputs)

    class Short(AnOpWithAVeryLongNameThatGoesOnAndOnAndOnAndOn):
        pass

    names = [f"weight_number_{i}" for i in range(9)]
    w = {name: th.nn.Parameter(np.ones((2, 3, 4, 5), np.float32)) for name in names}
    long = "the_input_has_quite_a_long_name_too_and_then_some_more"

    x = leaf(2, 3, 4, 5)
    y = th.apply(Short, x, *w.values())
    y = th.apply(AnOpWithAVeryLongNameThatGoesOnAndOnAndOnAndOn, y, *w.values())
    graph = describe([y], {long: x, **w}).to_json()
    text = lanes.draw_lanes(graph, "long")
    lines = {}
    for kind, x0, y0, words in re.findall(
        r'<text(?: class="(\w+)")? x="([\d.]+)" y="([\d.]+)">([^<]+)<', text
    ):
        wide = len(words) * lanes._LETTER
        start = float(x0) - {"num": wide, "": wide / 2}.get(kind, 0)
        lines.setdefault(y0, []).append((start, start + wide))
    assert sorted(map(len, lines.values())) == [2, 2, 4]
    for spans in lines.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans)), spans
        assert spans[0][0] >= 0
        assert spans[-1][1] <= lanes.WIDTH
    assert "…" in text
    assert ">+8<" in text  # there is room for one tag of nine


def test_bands_stand_on_one_another_and_end_where_the_tape_lets_go(small):
    found = small.traces["rows"]["composed"]
    top = max(e[PEAK] for e in found["events"])
    text = draw_bands(found, top, "t")
    heights = {}
    for storage, path in re.findall(r'data-storage="(s\d+)"[^>]*d="([^"]+)"', text):
        ys = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", path)]
        heights[storage] = max(ys) - min(ys)
    shown = {s["id"]: s["nbytes"] for s in found["graph"]["storages"] if not s["parameter"]}
    assert heights.keys() == shown.keys()
    for s, size in shown.items():
        assert heights[s] >= size / top * 144 - 0.2
    assert max(e[LIVE] for e in found["events"]) <= top


@pytest.mark.parametrize("top", [0, 1, 7, 999, 1e6, 14_236_742, 2**40])
def test_round_steps(top):
    steps = round_steps(top)
    assert steps[0] == 0
    assert steps[-1] <= max(0, top)
    assert len(steps) <= 5
    assert top == 0 or len(steps) >= 3


# --- the page


def test_the_page_is_whole_and_asks_for_nothing_from_outside(html):
    found = Page(html)
    for _, attrs, _ in found.elements:
        for name in ("src", "href", "action", "data", "poster"):
            value = attrs.get(name) or "#"
            assert value.startswith("#") or value == "data:,", attrs
        assert not any(name.startswith("on") for name in attrs), attrs
    assert "http://" not in html
    assert "https://" not in html
    assert "@import" not in html
    assert set(re.findall(r"url\(([^)]*)\)", html)) <= {
        f"#fill-{i}-{j}" for i in range(lanes.HUES) for j in range(lanes.HATCHES)
    }
    (policy,) = [
        a["content"]
        for a in found.of("meta")
        if a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'")
    ids = [a["id"] for _, a, _ in found.elements if "id" in a]
    assert len(ids) == len(set(ids))
    assert "{{" not in html
    labels = {a["for"] for _, a, _ in found.elements if "for" in a}
    assert labels <= set(ids)


def test_every_picture_says_what_it_shows(html):
    for tag, attrs, _ in Page(html).elements:
        if tag == "svg":
            assert attrs.get("aria-label") or attrs.get("aria-hidden") == "true"
        if attrs.get("role") == "button":
            assert attrs["aria-label"]
        if tag == "button":
            assert attrs["type"] == "button"


def test_without_scripts_the_tables_and_pictures_are_there(small, html):
    found = Page(html)
    words = " ".join("".join(found.text).split())
    for r in (*small.rows, *small.model):
        assert f"{r.saved_bytes['counted']:,}" in words
        assert f"{r.peak_bytes:,}" in words
        for error in r.grads.values():
            assert f"{error:.1e}" in words or error == 0
    hidden = [a for _, a, _ in found.elements if "js" in (a.get("class") or "").split()]
    assert hidden, "controls are hidden until the script runs"
    assert "Scripts are off" in words


def test_the_data_is_the_reports_own(small, html):
    data = of_page(html)
    assert data["report"] == json.loads(json.dumps(small.to_json()))
    assert list(data["scenes"]) == ["rows", "model"]
    for key in ("rows", "model"):
        for name, found in data["scenes"][key]["variants"].items():
            assert found["events"] == small.traces[key][name]["events"]
    assert data["dial"]["bytes"] == small.dial["bytes"]


NASTY = "</script><b>&\"'<!--"


@pytest.fixture(scope="module")
def nasty():
    class Nasty(th.Op):
        """</script><b>y = x"""

        name = NASTY
        saves = {NASTY: th.Input(0)}

        @staticmethod
        def forward(xp, x, *, needs):
            return x * 2, {NASTY: x}

        @staticmethod
        def vjp(dy, saved, *, needs, inputs):
            return (dy * 2,)

    def fn(**inputs):
        return th.apply(Nasty, inputs[NASTY])

    report = th.compare(
        {NASTY: fn, "{{data}}": fn, "ünï 漢字": fn}, {NASTY: leaf(3)}, repeats=1
    )
    report.config["target"] = NASTY
    return report


def test_names_of_users_are_escaped(nasty):
    text = page(nasty.to_json(), nasty.traces, nasty.dial, [NASTY])
    found = Page(text)
    bold = [o for t, _, o in found.elements if t == "b"]
    assert len(bold) == text.count("<b>") + text.count("<b ")
    assert text.count("</script>") == 2
    assert "</script><b>" not in text
    data = of_page(text)
    assert list(data["scenes"]["rows"]["variants"]) == [NASTY, "{{data}}", "ünï 漢字"]
    shown = [a["data-variant"] for _, a, _ in found.elements if "data-variant" in a]
    assert shown == [NASTY, "{{data}}", "ünï 漢字"]
    assert NASTY in "".join(found.text)


def test_scripts_cannot_be_ended_by_data():
    value = {"a": "</script>", "b": "<!--<script>", "c": "\u2028&"}
    text = script_json(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == value | {"c": "�&"}


def test_tables_of_the_page_escape_and_say_what_is_a_head():
    text = table("<c>", ["<h>", "n"], [["<r>", "<v>"]], stack=True)
    assert "<c>" not in text and "<h>" not in text and "<r>" not in text
    assert '<th scope="row">&lt;r&gt;</th>' in text
    assert '<td class="n" data-of="n">&lt;v&gt;</td>' in text
    assert escape(escape("<")) == "&lt;"


@pytest.mark.parametrize(
    ("variants", "inputs"),
    [
        ({"one": lambda x: x * x}, {"x": (3,)}),
        ({"none saved": lambda x: x + 1.0, "same": lambda x: 1.0 + x}, {"x": (3,)}),
        ({"empty": lambda x: x * x, "b": lambda x: x**2}, {"x": (0, 4)}),
        ({"scalar": lambda x: x * x}, {"x": ()}),
        ({"nan": lambda x: x * x * float("nan"), "b": lambda x: x * x}, {"x": (3,)}),
    ],
    ids=["one", "none saved", "empty", "scalar", "nan"],
)
def test_pages_of_strange_comparisons(variants, inputs, tmp_path):
    made = {name: leaf(*shape) for name, shape in inputs.items()}
    report = th.compare(variants, made, repeats=1, out=tmp_path)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    Page(text)
    assert list(of_page(text)["scenes"]["rows"]["variants"]) == list(variants)
    for failure in report.check():
        assert escape(failure) in text


def test_without_a_float64_run_the_page_says_so(tmp_path):
    lin = th.nn.Linear(4, 3)
    th.compare({"a": lambda x: lin(x), "b": lambda x: lin(x) * 1.0}, {"x": leaf(5, 4)},
               repeats=1, out=tmp_path)  # fmt: skip
    words = "".join(Page((tmp_path / "report.html").read_text()).text)
    assert "not known: there is no float64 run" in words
    assert "its own rounding is not known" in words


def test_a_graph_of_too_many_nodes_is_not_drawn(monkeypatch):
    monkeypatch.setattr(panels, "_MOST_NODES", 3)
    report = th.compare(
        {"a": lambda x: x.exp().exp().exp().exp()}, {"x": leaf(2)}, repeats=1
    )
    text = page(report.to_json(), report.traces)
    assert "4 nodes are too many to be drawn here" in text
    assert not Page(text).of("svg", **{"class": "lanes"})


def test_a_model_of_four_blocks_takes_less_than_three_megabytes(monkeypatch):
    monkeypatch.setattr(compare, "PAUSE", 0)
    monkeypatch.setattr(language, "PAUSE", 0)
    report = language.compare_language_model(
        dim=8, layers=4, batch=2, seq=6, steps=1, warmup=0
    )
    text = page(report.to_json(), report.traces, report.dial, report.check())
    assert len(text.encode()) < 3_000_000


def test_a_report_without_traces_writes_no_page(small, tmp_path):
    bare = type(small)(small.config, small.rows, small.model, {}, small.reference)
    assert [p.name for p in bare.save(tmp_path)] == ["report.json"]


# --- tables of other forms


def test_markdown_and_latex_escape_what_means_something_there():
    lines = [["variant", "a|b"], ["x_1 & <b>", "50 %"]]
    text = markdown("T*", lines, ["note_1"])
    assert text.splitlines() == [
        "**T\\***",
        "",
        "| variant | a\\|b |",
        "| :--- | ---: |",
        "| x\\_1 & \\<b\\> | 50 % |",
        "",
        "note\\_1",
    ]
    text = latex("T_1", lines, ["50 %"])
    assert r"x\_1 \& <b> & 50 \% \\" in text.splitlines()
    assert r"\caption{T\_1}" in text
    assert r"\par 50 \%" in text
    assert text.count(r"\begin{") == text.count(r"\end{") == 2


def test_tables_of_a_report(small):
    rows = list(csv.DictReader(io.StringIO(small.table("csv"))))
    assert [r["of"] for r in rows] == ["block"] * 6 + ["step"] * 6
    for line, r in zip(rows, (*small.rows, *small.model), strict=True):
        assert line["variant"] == r.variant
        assert int(line["saved_bytes.counted"]) == r.saved_bytes["counted"]
        assert int(line["peak_bytes"]) == r.peak_bytes
        assert float(line["step_ms.median"]) == r.step_ms["median"]
    assert small.table("md").count("| variant |") == 4
    assert small.table("latex").count(r"\toprule") == 4
    with pytest.raises(th.errors.HelixError, match="md, latex or csv"):
        small.table("html")


TARGET = """
import tinygrad_helix as th
def composed(x): return (x.exp() * x).sum()
def fused_one(x): return (x * x.exp()).sum()
def inputs(): return {"x": th.ones(4, requires_grad=True)}
"""


@pytest.mark.parametrize("form", ["md", "latex", "csv"])
def test_the_command_prints_a_table_and_nothing_else(form, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compare, "PAUSE", 0)
    (tmp_path / "mine.py").write_text(TARGET)
    folder = tmp_path / "out"
    args = ["compare", str(tmp_path / "mine.py"), "--repeats", "1", "--table", form]
    assert cli.main([*args, "--out", str(folder)]) == 0
    out = capsys.readouterr().out
    start = {"md": "**", "latex": "\\begin{table}", "csv": "of,variant,"}[form]
    assert out.startswith(start)
    assert "wrote" not in out
    page_text = (folder / "report.html").read_text(encoding="utf-8")
    data = of_page(page_text)
    assert data["report"] == json.loads((folder / "report.json").read_text())
    assert data["report"]["rows"][0]["grad_diffs"] == {"x": 0.0}


def test_keepable_is_what_the_dial_shows(html):
    found = Page(html)
    boxes = [a for a in found.of("input", type="checkbox") if "data-bit" in a]
    assert len(boxes) == len(KEEPABLE)
    assert [a for a in boxes if "disabled" in a] == boxes[:1]


# --- what a vjp makes itself


class Hungry(th.Op):
    """y = x      dx = dy      its vjp makes arrays and temporaries"""

    @staticmethod
    def forward(xp, x, *, needs):
        return x + 0.0, {}

    @staticmethod
    def vjp(dy, saved, *, needs, inputs):
        lasting = np.ones(40_000, np.float32)
        dx = dy * 1.0
        lasting.sum() + (np.ones(90_000, np.float32) * 2.0).sum()
        return (dx,)


def test_scratch_names_the_lines_of_a_vjps_peak():
    y = th.apply(Hungry, leaf(1000) * 1.0).exp()
    parts = {p["source"]: (p["nbytes"], p["kept"]) for p in scratch(y, 1)}
    assert parts["lasting = np.ones(40_000, np.float32)"] == (160_000, 0)
    assert parts["dx = dy * 1.0"] == (4_000, 4_000)
    size, kept_on = parts["lasting.sum() + (np.ones(90_000, np.float32) * 2.0).sum()"]
    assert abs(size - 720_000) < 4_000, "the ones and their product, and Python's objects"
    assert kept_on == 0
    assert th.saved_bytes(y) == 4_000, "the graph is as it was"
    places = [p["place"] for p in scratch(y, 1)]
    assert places[0].endswith(f"test_html_report.py:{line_of(Hungry.vjp) + 4}")


def line_of(fn):
    return fn.__code__.co_firstlineno


@pytest.mark.parametrize("policy", ["keep9", "keep1"])
def test_scratch_of_a_fused_node_adds_up_to_its_transient_bytes(policy):
    block = th.nn.HelixBlock(32, generator=np.random.default_rng(0))
    w, x = dict(block.named_parameters()), leaf(4, 64, 32)

    def fn(**inputs):
        return th.helix_block(**inputs, policy=policy)

    measured = profile(fn, {"x": x, **w}, parameters=tuple(w), describe=describe)
    y = fn(x=x, **w)
    made = sum(p["nbytes"] - p["kept"] for p in scratch(y, 0))
    slack = 64 * 1024
    assert abs(measured.transient_bytes - made) <= slack
    wanted = x.nbytes + sum(p.nbytes for p in w.values())
    assert sum(p["kept"] for p in scratch(y, 0)) == wanted, "the gradients"

    found = trace(measured, lambda n: scratch(y, n))
    reader = answers.Reader(found)
    peak = reader.peak()
    assert peak["waiting"] == x.nbytes, "dy"
    assert peak["tape"] == measured.counted
    assert abs(sum(size for size, *_ in peak["parts"]) - peak["rest"]) <= slack
    what, _ = reader.mostly()
    part = f"{100 * peak['rest'] / peak['bytes']:.0f} %"
    if policy == "keep1":
        assert what.startswith(f"{part} scratch inside the vjp of fused_helix n0")
        assert "helix.py:" in what


def test_nothing_is_said_of_scratch_where_tracemalloc_is_in_use():
    y = leaf(8).exp()
    with th.accounting.tracing():
        assert scratch(y, 0) == []
    assert scratch(y, 99) == [], "there is no such node"


def test_nodes_are_numbered_from_the_first_of_each_tape(small, html):
    data = of_page(html)
    for key in ("rows", "model"):
        for name, found in data["scenes"][key]["variants"].items():
            nodes = found["graph"]["nodes"]
            assert nodes[0]["id"] == "n0", name
            steps = [n["counter"] - nodes[0]["counter"] for n in nodes]
            assert [n["id"] for n in nodes] == [f"n{step}" for step in steps]
            known = {n["id"] for n in nodes}
            assert {e["target"] for e in found["graph"]["edges"]} <= known
            assert {
                h["node"] for s in found["graph"]["storages"] for h in s["holders"]
            } <= known
    assert not re.search(r"\b\w+ #\d", "".join(Page(html).text))


def test_saved_tensors_and_storages_are_told_apart(small, html):
    rows = {r.variant: r for r in small.rows}
    assert (rows["composed"].saved_tensors, rows["composed"].storages) == (16, 13)
    assert (rows["primitive"].saved_tensors, rows["primitive"].storages) == (34, 23)
    words = "".join(Page(html).text)
    assert "saved tensorsstorages" in words


# --- pieces for paper


def test_a_long_graph_is_cut_for_paper_between_rows(small):
    graph = small.traces["rows"]["primitive"]["graph"]
    text = lanes.draw_lanes(graph, "t", "here")
    height = float(re.search(r'class="lanes" viewBox="0 0 \d+ (\d+)"', text)[1])
    pieces = re.findall(r'class="paper" viewBox="0 ([\d.]+) \d+ ([\d.]+)"', text)
    spans = [(float(y), float(y) + float(tall)) for y, tall in pieces]
    assert len(spans) > 1
    assert spans[0][0] == 0
    assert abs(spans[-1][1] - height) < 1
    for (_, end), (start, _) in pairwise(spans):
        assert abs(end - start) < 0.2
    assert all(b - a <= lanes._PIECE + 6 for a, b in spans)
    rows = re.findall(r'class="hit" x="2" y="([\d.]+)" width="\d+" height="([\d.]+)"', text)
    for y, tall in rows:
        assert sum(a <= float(y) and float(y) + float(tall) <= b for a, b in spans) == 1
    assert text.count('href="#here"') == len(spans)
    assert "paper" not in lanes.draw_lanes(graph, "t")


# --- what is said of times and of what is not predicted


def test_a_busy_machine_and_missing_predictions_are_said():
    calm = {"a": {"median": 1.4, "min": 1.0}, "b": {"median": 2.0, "min": 2.0}}
    assert spread(calm) is None
    said = spread(calm | {"c": {"median": 240.0, "min": 55.0}})
    assert said.startswith("The machine was busy: the median step of c is 4.4 times its")
    report = th.compare({"a": lambda x: (x * x).sum()}, {"x": leaf(3)}, repeats=1)
    report.rows[0].step_ms = {"median": 240.0, "min": 55.0}
    words = "".join(Page(page(report.to_json(), report.traces)).text)
    for text in (str(report), words):
        assert "4.4 times its least" in text
        assert "states no bytes beforehand" in text
    assert "55.0 ms" in str(report)
