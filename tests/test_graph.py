"""The graph model: what it says of a tape, and what closing and folding leave the same."""

import gc
import json
import weakref
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinygrad_helix as th
from tinygrad_helix.errors import DTypeError, GraphError, HelixError
from tinygrad_helix.nn import Module, Parameter
from tinygrad_helix.viz.collapse import collapse
from tinygrad_helix.viz.fit import fit, tail
from tinygrad_helix.viz.reader import read
from tinygrad_helix.viz.text import text_drawing


def language_model(layers=3, mode="composed", dim=8):
    th.manual_seed(0)
    model = th.nn.HelixLM(vocab=16, dim=dim, layers=layers, mode=mode)
    tokens = np.arange(10).reshape(2, 5)
    return model, model.loss(tokens, tokens + 1)


def ids(graph):
    return [node.id for node in graph.nodes]


# --- what is read


def test_a_small_graph_word_by_word():
    x = th.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    w = Parameter(np.ones((3, 2), np.float32))
    y = (x.exp() @ w).sum()
    graph = read(y, {"x": x, "weight": w, "total": y}).graph
    exp, matmul, total = graph.nodes
    assert [n.op for n in graph.nodes] == ["exp", "matmul", "sum"]
    assert [n.counter for n in graph.nodes] == [n.counter for n in th.memory.nodes(y)]
    assert exp.id == f"n{exp.counter}"
    assert exp.place.startswith(__file__)
    assert exp.source == "y = (x.exp() @ w).sum()"
    assert exp.formula == "y = e^x      dx = dy · y      keeps y."
    assert matmul.inputs[1].shape == (3, 2)
    assert matmul.outputs[0] == matmul.outputs[0].__class__((1, 2), "float32", 8)
    assert total.names == ("total",)
    assert total.title == "total = sum"
    assert [(x.id, x.name, x.kind, x.shape, x.nbytes) for x in graph.leaves] == [
        ("x0", "x", "input", (1, 3), 12),
        ("x1", "weight", "parameter", (3, 2), 24),
    ]
    assert [(e.source, e.target, e.input, e.nbytes, e.kept) for e in graph.edges] == [
        ("x0", exp.id, 0, 12, False),
        (exp.id, matmul.id, 0, 12, True),
        ("x1", matmul.id, 1, 24, True),
        (matmul.id, total.id, 0, 8, False),
    ]
    assert [(o.name, o.source, o.shape) for o in graph.outputs] == [("total", total.id, ())]
    assert graph.caption == "3 nodes · saved 12 bytes"


def test_storages_are_there_once_with_all_holders_and_views():
    x = th.tensor(np.arange(12.0).reshape(3, 4), requires_grad=True)
    h = x.exp()
    y = (h * h).sum() + (h[0] * h[0]).sum()
    graph = read(y).graph
    [storage] = [s for s in graph.storages if not s.parameter and s.nbytes == 96]
    held = [(h.label, h.view) for h in storage.holders]
    assert held == [("y", False), ("a", False), ("b", False), ("a", True), ("b", True)]
    assert storage.name == "exp.y"
    assert graph.saved_bytes == th.saved_bytes(y)
    assert [n.op for n in graph.nodes if n.saved_bytes] == ["exp"]


@pytest.mark.parametrize("mode", ["primitive", "composed", "fused"])
def test_bytes_and_counts_are_those_of_the_ledger(mode):
    _, loss = language_model(mode=mode)
    graph = read(loss).graph
    assert graph.tape_nodes == len(graph.nodes) == len(th.memory.nodes(loss))
    assert graph.saved_bytes == th.saved_bytes(loss)
    by_id = {s.id: s for s in graph.storages}
    rows = th.memory.saved(loss)
    assert len(by_id) == sum(row.first for row in rows)
    assert sum(len(s.holders) for s in by_id.values()) == len(rows)
    labels = [(n.op, s.label, s.shape) for n in graph.nodes for s in n.saved or ()]
    assert labels == [(row.op, row.label, row.shape) for row in rows]


def test_parameters_are_named_after_the_modules_that_ran():
    model, loss = language_model(layers=2)
    graph = read(loss).graph
    names = {leaf.name for leaf in graph.leaves if leaf.kind == "parameter"}
    assert names == {name for name, _ in model.named_parameters()}
    graph = read(loss, {"net": model, "other": th.nn.RMSNorm(3)}).graph
    assert {f"net.{name}" for name in names} == {
        leaf.name for leaf in graph.leaves if leaf.kind == "parameter"
    }


def test_clusters_are_the_calls_of_modules():
    _, loss = language_model(layers=2)
    graph = read(loss).graph
    assert [(c.path, c.kind, c.outer) for c in graph.clusters] == [
        ("", "HelixLM", None),
        ("embed", "Embedding", "c0"),
        ("blocks.0", "HelixBlock", "c0"),
        ("blocks.1", "HelixBlock", "c0"),
        ("norm", "RMSNorm", "c0"),
    ]
    paths = [node.path for node in graph.nodes]
    assert paths.count("blocks.0") == paths.count("blocks.1") == 20
    assert graph.nodes[-1].op == "cross_entropy"
    assert graph.nodes[-1].cluster is None


class Twice(Module):
    """One module called twice, and one that is no attribute."""

    def __init__(self, stranger):
        self.inner = th.nn.RMSNorm(3)
        self.kept_elsewhere = {"m": stranger}

    def forward(self, x):
        return self.kept_elsewhere["m"](self.inner(self.inner(x)))


def test_every_call_is_a_cluster_of_its_own_and_strangers_have_their_class():
    model = Twice(th.nn.RMSNorm(3))
    y = model(th.ones(2, 3))
    clusters = read(y).graph.clusters
    assert [c.path for c in clusters] == ["", "inner", "inner", "RMSNorm"]
    assert len({c.id for c in clusters}) == 4
    del model  # what is gone has no names
    assert {c.path for c in read(y).graph.clusters} == {"", "RMSNorm"}


def test_names_of_calls_cost_the_forward_pass_nothing(monkeypatch):
    class Inner(Module):
        def __init__(self):
            self.w = Parameter(np.ones(2, np.float32))

        def forward(self, x):
            return x * self.w

    class Outer(Module):
        def __init__(self):
            self.loop = [Inner(), 3]
            self.loop.append(self.loop)

        def forward(self, x):
            return self.loop[0](x)

    asked = []
    walk = Module._walk
    monkeypatch.setattr(Module, "_walk", lambda *args: asked.append(1) or walk(*args))
    model, x = Outer(), th.ones(2)
    with th.no_grad():
        model(x)
    y = model(x)
    assert asked == []
    assert [c.path for c in read(y).graph.clusters] == ["", "loop.0"]
    assert [name for name, _ in model.named_parameters()] == ["loop.0.w"]
    assert "loop.0.w" in str(th.draw(y)) and "loop.0: Inner" in repr(model)


def test_a_call_that_raises_leaves_no_scope_behind():
    class Breaks(Module):
        def forward(self, x):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Breaks()(1)
    x = th.ones(2, requires_grad=True)
    assert read(x.exp()).graph.clusters == ()


def test_the_tape_keeps_no_module_and_the_graph_no_tape():
    model = th.nn.RMSNorm(3)
    y = model(th.ones(2, 3)) * 2
    gone = weakref.ref(model)
    node = weakref.ref(y.node)
    reading = read(y)
    drawing = th.draw(y)
    del model
    assert gone() is None
    assert [c.kind for c in read(y).graph.clusters] == ["RMSNorm"]
    del y, reading
    gc.collect()
    assert node() is None
    assert [n.op for n in drawing.graph.nodes] == ["mul", "mul"]
    assert "RMSNorm" in str(drawing)


def test_names_may_be_locals_with_anything_in_them():
    x, w = th.ones(2, requires_grad=True), th.ones(2, requires_grad=True)
    weights = [w, 3, None]
    table, text, number, function = {"x": x}, "words", 3, len
    y = x * w
    z = alias = y + 1
    graph = read(z, locals()).graph
    assert [leaf.name for leaf in graph.leaves] == ["x = table['x']", "w = weights[0]"]
    assert graph.outputs[0].name == "z = alias"
    assert graph.nodes[0].names == ("y",)


def test_what_needs_no_gradient_is_a_constant_named_if_it_is_kept():
    x = th.ones(2, 3, requires_grad=True)
    data, unkept = th.ones(2, 3), np.ones((2, 3), np.float32)
    graph = read((x * data + unkept) * 2.0, {"data": data, "unkept": unkept}).graph
    constants = [(x.name, x.shape) for x in graph.leaves if x.kind == "constant"]
    assert constants == [("data", (2, 3)), (None, (2, 3))]


def test_numbers_and_packed_values_are_saved_without_storage():
    x = th.tensor([1.0, 2.0], requires_grad=True)
    with th.saved_tensor_hooks(lambda t: [t.numpy().tobytes()], lambda p: None):
        y = x.exp()
    graph = read(y**3).graph
    (packed,), second = (node.saved for node in graph.nodes)
    assert (packed.storage, packed.value, packed.nbytes) == (None, None, 8)
    assert {s.label: s.value for s in second if s.storage is None} == {"b": "3"}


def test_a_freed_graph_says_so_and_shows_what_is_left():
    _, loss = language_model(layers=2)
    before = read(loss).graph
    keeping = [node.id for node in before.nodes if node.saved]
    loss.backward()
    after = read(loss).graph
    assert ids(after) == ids(before)
    assert [node.id for node in after.nodes if node.saved is None] == keeping
    assert after.saved_bytes == 0
    assert after.freed == len(keeping)
    assert after.caption.endswith(f"· {len(keeping)} nodes have dropped what they saved")
    assert collapse(after, 0).freed == len(keeping)


def test_json_is_plain_and_says_all():
    _, loss = language_model(layers=2)
    graph = read(loss).graph
    data = json.loads(json.dumps(graph.to_json(), allow_nan=False))
    assert data["schema"] == "tinygrad_helix.graph/1"
    assert data["saved_bytes"] == sum(n["saved_bytes"] for n in data["nodes"])
    known = {x["id"] for kind in ("nodes", "leaves") for x in data[kind]}
    for edge in data["edges"]:
        assert {edge["source"], edge["target"]} <= known
    storages = {s["id"] for s in data["storages"]}
    saved = {s["storage"] for n in data["nodes"] for s in n["saved"] or []}
    assert saved == storages
    assert {h["node"] for s in data["storages"] for h in s["holders"]} <= known


def test_a_deep_chain_is_read_folded_and_drawn_without_recursion():  # O63
    """https://github.com/szagoruyko/pytorchviz/issues/71"""
    x = th.ones(2, requires_grad=True)
    y = x
    for _ in range(5000):
        y = y * x
    graph = read(y).graph
    assert len(graph.nodes) == 5000
    assert len(collapse(graph, 0).nodes) <= 2
    assert "n" in th.draw(y).source
    assert len(str(th.draw(y)).splitlines()) > 5000


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda x: x, GraphError, "has no graph: it is a leaf"),
        (lambda x: x.detach() * 2, GraphError, "has no graph: it requires no gradient"),
        (lambda x: [], GraphError, "nothing to draw"),
        (lambda x: 3.0, DTypeError, "got float"),
        (lambda x: [x * 2, None], DTypeError, "got NoneType"),
    ],
)
def test_what_has_no_graph_is_refused(make, error, match):
    x = th.ones(3, requires_grad=True)
    with pytest.raises(error, match=match):
        th.draw(make(x))
    with pytest.raises(DTypeError, match="names is a dict"):
        th.draw(x * 2, names=["x"])
    with pytest.raises(HelixError, match="depth=-1"):
        th.draw(x * 2, depth=-1)


# --- closing and folding


@pytest.mark.parametrize("mode", ["composed", "fused"])
@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_closing_changes_no_count_and_no_byte(mode, depth):
    _, loss = language_model(layers=4, mode=mode)
    graph = read(loss).graph
    smaller = collapse(graph, depth)
    assert smaller.tape_nodes == graph.tape_nodes
    assert smaller.saved_bytes == graph.saved_bytes
    assert len(smaller.nodes) < len(graph.nodes)
    known = set(ids(smaller)) | {leaf.id for leaf in smaller.leaves}
    order = {id: i for i, id in enumerate(ids(smaller))}
    for e in smaller.edges:
        assert {e.source, e.target} <= known
        if e.source in order:
            assert order[e.source] < order[e.target]  # no cycle
        outputs = [n.outputs for n in smaller.nodes if n.id == e.source]
        assert all(o[e.output].shape == e.shape for o in outputs)
        [into] = [n.inputs for n in smaller.nodes if n.id == e.target]
        assert e.target not in ids(graph) or into[e.input].shape == e.shape
    assert json.loads(json.dumps(smaller.to_json()))["tape_nodes"] == graph.tape_nodes


def test_repeats_are_drawn_once():
    _, loss = language_model(layers=12)
    boxes = collapse(read(loss).graph, 1)
    assert [(n.op, n.path, n.times, n.count, n.parameters) for n in boxes.nodes] == [
        ("Embedding", "embed", 1, 1, 0),  # its weight is the head's too
        ("HelixBlock", "blocks.0", 12, 240, 9),
        ("RMSNorm", "norm", 1, 2, 1),
        ("transpose", "", 1, 1, 0),
        ("matmul", "", 1, 1, 0),
        ("cross_entropy", "", 1, 1, 0),
    ]
    opened = collapse(read(loss).graph, 2)
    assert sum(node.times == 12 for node in opened.nodes) == 20
    [block] = [c for c in opened.clusters if c.kind == "HelixBlock"]
    assert (block.path, block.times) == ("blocks.0", 12)
    assert {x.name: x.times for x in opened.leaves}["blocks.0.wo"] == 12


class Block(Module):
    def __init__(self):
        self.linear = th.nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(x).silu()


class Row(Module):
    """Its children one after the other, or side by side and then added, after an op."""

    def __init__(self, children, first=None, parallel=False):
        self.children = children
        self.first = first
        self.parallel = parallel

    def forward(self, x):
        x = x if self.first is None else getattr(x, self.first)()
        if self.parallel:
            return th.cat([child(x) for child in self.children], axis=1)[:, :2]
        for child in self.children:
            x = child(x)
        return x


def goes_forward(graph):
    order = {id: i for i, id in enumerate(ids(graph))}
    return all(
        order.get(e.source, -1) < order[e.target] for e in graph.edges
    ) and text_drawing(graph)


def test_repeats_inside_of_repeats():
    model = Row([Row([Block(), Block()], "tanh") for _ in range(3)])
    y = model(th.ones(2, 2, requires_grad=True))
    drawing = th.draw(y, {"model": model}, depth=3)
    nodes = [(n.op, n.times, n.count) for n in drawing.graph.nodes]
    assert nodes == [("tanh", 3, 3), ("Linear", 6, 12), ("silu", 6, 6)]
    calls = [(c.path, c.kind, c.times) for c in drawing.graph.clusters]
    assert calls == [
        ("", "Row", 1), ("children.0", "Row", 3), ("children.0.children.0", "Block", 6),
    ]  # fmt: skip
    tanh, linear, silu = ids(drawing.graph)
    made = [(e.source, e.target) for e in drawing.graph.edges if e.source[0] != "x"]
    assert made == [(tanh, linear), (linear, silu)]
    assert str(drawing).count(" × 2") == 1 and str(drawing).count(" × 3") == 1


def test_a_row_of_repeats_arrives_as_one_inside_of_repeats_too():
    model = Row([Row([Block() for _ in range(4)], "tanh", parallel=True) for _ in range(3)])
    graph = th.draw(model(th.ones(2, 2, requires_grad=True)), depth=2).graph
    assert [(n.op, n.times) for n in graph.nodes] == [
        ("tanh", 3), ("Block", 12), ("cat", 3), ("getitem", 3),
    ]  # fmt: skip
    tanh, blocks, cat, part = ids(graph)
    made = [(e.source, e.target, e.times) for e in graph.edges if e.source[0] != "x"]
    assert made == [(tanh, blocks, 1), (blocks, cat, 4), (cat, part, 1)]


def random_row(random, deep):
    """A Row of up to two kinds of children, each up to three times in a row."""
    children = []
    for _ in range(random.randint(1, 2)):
        seed, small = random.random(), deep == 0 or random.random() < 0.4
        children += [
            Block() if small else random_row(Random(seed), deep - 1)
            for _ in range(random.randint(1, 3))
        ]
    return Row(children, random.choice([None, "tanh"]), random.random() < 0.3)


@settings(max_examples=30, deadline=None)
@given(st.randoms(use_true_random=False))
def test_whatever_is_nested_values_go_forward_and_nothing_is_lost(random):
    model = random_row(random, 3)
    graph = read(model(th.ones(2, 2, requires_grad=True)), {"model": model}).graph
    for depth in range(6):
        smaller = collapse(graph, depth)
        assert goes_forward(smaller), depth
        assert smaller.tape_nodes == graph.tape_nodes
        assert smaller.saved_bytes == graph.saved_bytes
        assert all(n.count == n.times for n in smaller.nodes if n.kind == "op")


def test_what_differs_is_not_folded():
    th.manual_seed(0)
    blocks = [th.nn.HelixBlock(4, policy=p) for p in ("keep6", "keep6", "keep4", "keep6")]
    x = th.ones(1, 2, 4, requires_grad=True)
    y = x
    for block in blocks:
        y = block(y)
    assert [n.times for n in collapse(read(y).graph, 0).nodes] == [2, 1, 1]
    z = blocks[1](blocks[0](x)) + blocks[0](x)  # in a row, but not wired in a row
    assert [n.times for n in collapse(read(z).graph, 0).nodes] == [2, 1, 1]


def test_a_first_unit_fed_from_elsewhere_and_units_of_several_ops_fold():
    x = th.ones(2, 2, requires_grad=True)
    w = [th.ones(2, 2, requires_grad=True) for _ in range(5)]
    h = x.exp()
    for one in w:
        h = (h @ one).tanh()
    graph = collapse(read(h.sum(), {"w": w}).graph, 0)
    assert [(n.op, n.times) for n in graph.nodes] == [
        ("exp", 1), ("matmul", 5), ("tanh", 5), ("sum", 1),
    ]  # fmt: skip
    assert [(e.source[0], e.target) for e in graph.edges[:3]] == [
        ("x", graph.nodes[0].id),
        ("n", graph.nodes[1].id),
        ("x", graph.nodes[1].id),
    ]
    assert [leaf.times for leaf in graph.leaves] == [1, 5]


def test_parallel_branches_fold():
    class Head(Module):
        def __init__(self):
            self.w = Parameter(np.ones((4, 2), np.float32))

        def forward(self, x):
            return (x @ self.w).tanh()

    heads = [Head() for _ in range(8)]
    x = th.ones(3, 4, requires_grad=True)
    h = x.exp()
    graph = collapse(read(th.cat([head(h) for head in heads], axis=1)).graph, 0)
    assert [(n.op, n.times) for n in graph.nodes] == [("exp", 1), ("Head", 8), ("cat", 1)]
    assert [(e.source, e.target) for e in graph.edges if e.source in ids(graph)] == [
        (graph.nodes[0].id, graph.nodes[1].id),
        (graph.nodes[1].id, graph.nodes[2].id),
    ]
    assert [e.times for e in graph.edges if e.source in ids(graph)] == [1, 8]


def test_the_tail_stands_for_all_before_it():
    _, loss = language_model(layers=2)
    graph = read(loss).graph
    end = tail(graph, 5)
    assert end.nodes[0].kind == "more"
    assert end.nodes[0].count == len(graph.nodes) - 5
    assert end.tape_nodes == graph.tape_nodes
    assert end.saved_bytes == graph.saved_bytes
    assert {e.source for e in end.edges} >= {"more"}
    assert tail(graph, 100) is graph


def test_fit_goes_as_deep_as_it_can():
    _, loss = language_model(layers=4)
    graph = read(loss).graph
    assert fit(graph, 200) is graph
    assert len(fit(graph, 40).nodes) == 26  # one block open, four times
    assert len(fit(graph, 10).nodes) == 6
    assert [n.op for n in fit(graph, 2).nodes] == ["HelixLM", "cross_entropy"]
    assert len(fit(graph, 1).nodes) == 2  # the last one, and what is before it
