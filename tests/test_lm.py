"""The language model: bytes, gradients, states, training without leaks."""

import gc
import math
import tracemalloc

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix.accounting import measure_saved
from tinygrad_helix.data import ByteBatches, Text, load_text
from tinygrad_helix.errors import DTypeError, HelixError, ShapeError
from tinygrad_helix.fused.policy import POLICIES, Budget, Keep
from tinygrad_helix.nn import HelixLM
from tinygrad_helix.optim import AdamW, clip_grad_norm_

FORMS = [
    ("primitive", None),
    ("composed", None),
    ("fused", None),
    *(("fused", policy) for policy in POLICIES),
    ("fused", Keep("x", "h", "f1")),
    ("fused", Budget(20_000)),
]
IDS = [f"{mode}-{getattr(policy, 'name', policy)}" for mode, policy in FORMS]
WIDTHS = {"composed": 15, None: 6, "keep9": 9, "keep6": 6, "keep4": 4, "keep3": 3}
WIDTHS |= {"keep2": 2, "keep1": 1}


def make(mode="fused", policy=None, *, dim=8, layers=2, dtype="float32", vocab=64):
    return HelixLM(
        vocab,
        dim,
        layers,
        mode=mode,
        policy=policy,
        dtype=dtype,
        generator=np.random.default_rng(0),
    )


def batch(b=2, t=17, vocab=64):
    rng = np.random.default_rng(1)
    return th.Tensor(rng.integers(0, vocab, (b, t))), th.Tensor(
        rng.integers(0, vocab, (b, t))
    )


# --- bytes


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("mode", "policy"), FORMS, ids=IDS)
def test_predicted_counted_and_measured_bytes_agree(mode, policy, dtype):
    model = make(mode, policy, dtype=dtype)
    tokens, targets = batch()
    predicted = sum(model.predict_saved(2, 17).values())
    loss = model.loss(tokens, targets)
    assert th.saved_bytes(loss) == predicted
    measured = measure_saved(model.loss, {"tokens": tokens, "targets": targets})
    assert measured == predicted
    if mode == "composed" or (mode == "fused" and policy in WIDTHS):
        width = WIDTHS[policy if mode == "fused" else mode]
        item, n, d = np.dtype(dtype).itemsize, 2 * 17, 8
        whole = n * (16 + item * (2 * width * d + 3 * d + 64))
        assert predicted == whole
    loss.backward()
    assert th.saved_bytes(loss) == 0


@pytest.mark.parametrize(
    "free",
    ["embed", "blocks.0.wo", "blocks.1.wf2", "blocks.1", "norm", "nothing"],
)
@pytest.mark.parametrize("mode", ["primitive", "composed", "fused"])
def test_bytes_of_a_partly_frozen_model(mode, free):
    model = make(mode).requires_grad_(False)
    for name, p in model.named_parameters():
        if name.startswith(free):
            p.requires_grad = True
    loss = model.loss(*batch())
    predicted = sum(model.predict_saved(2, 17).values())
    assert th.saved_bytes(loss) == predicted
    assert (predicted == 0) == (free == "nothing")


# --- values and gradients


def test_size_and_first_loss():
    model = HelixLM(generator=np.random.default_rng(0))
    V, D, L = 256, 128, 2
    count = sum(p.size for p in model.parameters())
    assert count == V * D + L * (7 * D * D + 5 * D) + D
    loss = model.loss(*batch(4, 32, 256))
    assert abs(loss.item() - math.log(256)) < 0.3
    assert [n for n, _ in model.named_parameters()][:2] == ["embed.weight", "blocks.0.wa"]


@pytest.mark.parametrize(("mode", "policy"), FORMS, ids=IDS)
def test_every_parameter_gets_the_gradient_of_the_composed_form(mode, policy):  # O43
    model, reference = (
        make(mode, policy, dtype="float64"),
        make("composed", dtype="float64"),
    )
    loss, due = model.loss(*batch()), reference.loss(*batch())
    np.testing.assert_allclose(loss.item(), due.item(), rtol=1e-13)
    loss.backward()
    due.backward()
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert np.any(p.grad.data != 0), name
        error = np.abs(p.grad.data - q.grad.data).max() / np.abs(q.grad.data).max()
        assert error < 1e-12, name


def test_gradients_of_the_tied_head():
    model = make("composed", dim=4, layers=1, dtype="float64", vocab=6)
    tokens, targets = batch(1, 3, 6)
    (weight,) = (p for n, p in model.named_parameters() if n == "embed.weight")

    def loss(w):
        model.embed.weight = w
        return model.loss(tokens, targets)

    assert th.gradcheck(loss, [weight])


@pytest.mark.parametrize("mode", ["primitive", "composed", "fused"])
def test_reading_in_pieces_gives_the_same_logits(mode):
    model = make(mode, dtype="float64")
    tokens, _ = batch()
    with th.no_grad():
        whole, last = model(tokens, return_state=True)
        states, parts = None, []
        for piece in (tokens[:, :5], tokens[:, 5:6], tokens[:, 6:]):
            logits, states = model(piece, states, return_state=True)
            parts.append(logits.data)
    np.testing.assert_allclose(np.concatenate(parts, 1), whole.data, rtol=0, atol=1e-13)
    for h, due in zip(states, last, strict=True):
        np.testing.assert_allclose(h.data, due.data, rtol=0, atol=1e-13)


def test_same_generator_same_weights_whatever_the_form():
    states = [make(mode, policy).state_dict() for mode, policy in FORMS[:4]]
    wide = make(dtype="float64").state_dict()
    for state in states:
        for name, value in state.items():
            assert np.array_equal(value.data, states[0][name].data)
            np.testing.assert_array_equal(value.data, wide[name].data.astype("float32"))


# --- what is refused


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: HelixLM(dim=0), ShapeError, "dim=0"),
        (lambda: HelixLM(layers=0), ShapeError, "layers=0"),
        (lambda: HelixLM(vocab=-1), ShapeError, "vocab=-1"),
        (lambda: HelixLM(dtype="int8"), DTypeError, "HelixLM got dtype 'int8'"),
        (lambda: HelixLM(mode="fast"), HelixError, "fast"),
        (lambda: HelixLM(policy="keep5"), HelixError, "keep5"),
        (lambda: HelixLM(mode="composed", policy="keep4"), HelixError, "policy"),
        (
            lambda: make()(np.zeros(3, int)),
            ShapeError,
            r"tokens of shape \[B, T\]; got \(3,\)",
        ),
        (lambda: make()([[64]]), ShapeError, r"0\.\.63"),
        (lambda: make()([[0.5]]), DTypeError, "ints"),
        (lambda: make()([[1]], [None]), ShapeError, "2 blocks .* got 1"),
        (lambda: make().loss([[1]], [[1, 2]]), ShapeError, "target"),
    ],
)
def test_bad_arguments(call, error, match):
    with pytest.raises(error, match=match):
        call()


# --- training


@pytest.mark.parametrize("mode", ["primitive", "composed", "fused"])
def test_training_lowers_the_loss(mode):
    model = make(mode, dim=16, vocab=128)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    batches = ByteBatches(Text("counting", bytes(range(128)) * 4), 4, 16, seed=0)
    losses = []
    for _ in range(60):
        loss = model.loss(*next(batches))
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] > 4.5 and losses[-1] < 3.0


@pytest.mark.parametrize("mode", ["composed", "fused"])
def test_a_thousand_steps_leak_nothing(mode):
    model = make(mode, dim=4, layers=1, vocab=256)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    batches = ByteBatches(load_text(), 2, 8, seed=0)

    def train(steps):
        for _ in range(steps):
            loss = model.loss(*next(batches))
            loss.backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return tracemalloc.get_traced_memory()[0]

    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        early = train(100)
        assert abs(train(900) - early) < 64 * 1024
    finally:
        tracemalloc.stop()
        gc.enable()
