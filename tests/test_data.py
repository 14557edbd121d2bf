"""Text and batches."""

import hashlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tinygrad_helix
from tinygrad_helix import data
from tinygrad_helix.data import ByteBatches, Text, load_text
from tinygrad_helix.errors import DTypeError, HelixError, ShapeError

DIGITS = Text("digits", bytes(range(100)))


# --- texts


def test_package_text_is_the_source_in_the_order_of_paths():
    text = load_text()
    assert text.name == "package"
    root = Path(tinygrad_helix.__file__).parent
    names = [p.relative_to(root).as_posix() for p in root.rglob("*.py")]
    due = b"".join(
        (root / n).read_bytes() for n in sorted(names) if not n.startswith("tutorials/")
    )
    assert text.raw == due.replace(b"\r\n", b"\n")
    assert len(text) == text.length == len(due)
    assert text.sha256 == hashlib.sha256(due).hexdigest()
    assert text.sha256[:12] in str(text) and f"{len(due):,}" in str(text)


def test_package_text_leaves_out_what_only_an_installed_package_has(tmp_path, monkeypatch):
    (tmp_path / "ops").mkdir()
    (tmp_path / "tutorials").mkdir()
    (tmp_path / "b.py").write_bytes(b"b\r\n")
    (tmp_path / "ops" / "a.py").write_bytes(b"a\n")
    (tmp_path / "ops" / "a.txt").write_bytes(b"no\n")
    (tmp_path / "tutorials" / "t.py").write_bytes(b"no\n")
    monkeypatch.setattr(data, "PACKAGE", tmp_path)
    assert load_text("package").raw == b"b\na\n"


def test_stdlib_text_is_long():
    text = load_text("stdlib")
    assert text.name == "stdlib" and len(text) > 1_000_000
    assert b"class ArgumentParser" in text.raw


def test_a_file_is_taken_as_it_is(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"\xff\r\n\x00")
    for source in (path, str(path)):
        text = load_text(source)
        assert text.data.tolist() == [255, 13, 10, 0]
        assert text.name == str(path)
    assert not text.data.flags.writeable


def test_bad_texts_each_say_why(tmp_path, monkeypatch):
    (tmp_path / "empty").touch()
    with pytest.raises(HelixError, match=r"no text at .*Give 'package', 'stdlib'"):
        load_text(tmp_path / "missing")
    with pytest.raises(HelixError, match="is empty"):
        load_text(tmp_path / "empty")
    with pytest.raises(HelixError, match=r"folder|cannot be read"):
        load_text(tmp_path)
    with pytest.raises(DTypeError, match="got int"):
        load_text(3)  # type: ignore[arg-type]

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(HelixError, match=r"cannot be read .*Permission denied"):
        load_text(tmp_path / "empty")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root reads all files")
def test_an_unreadable_file(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"x")
    path.chmod(0)
    with pytest.raises(HelixError, match="cannot be read"):
        load_text(path)


# --- batches


def test_targets_are_the_next_tokens_and_own_their_memory():
    tokens, targets = next(ByteBatches(DIGITS, batch=4, seq=7, seed=3))
    assert tokens.shape == targets.shape == (4, 7)
    assert tokens.dtype == targets.dtype == np.int64
    assert np.array_equal(tokens.data + 1, targets.data)
    assert np.array_equal(np.diff(tokens.data, axis=1), np.ones((4, 6)))
    for x in (tokens, targets):
        assert x.data.base is None and x.data.flags.c_contiguous


def values(batches, n):
    return [(t.tolist(), u.tolist()) for t, u in itertools.islice(batches, n)]


def test_batches_depend_on_seed_and_step_alone():
    np.random.seed(0)  # noqa: NPY002 - the global state is not to matter
    one = values(ByteBatches(DIGITS, 2, 5, seed=1), 4)
    np.random.seed(1)  # noqa: NPY002
    assert values(ByteBatches(DIGITS, 2, 5, seed=1), 4) == one
    assert values(ByteBatches(DIGITS, 2, 5, seed=2), 4) != one
    assert len({str(b) for b in one}) == 4
    resumed = ByteBatches(DIGITS, 2, 5, seed=1)
    resumed.step = 2
    assert values(resumed, 2) == one[2:]
    assert resumed.step == 4


def test_batches_are_the_same_in_another_process():
    code = (
        "from tinygrad_helix.data import *; import sys;"
        "b = ByteBatches(Text('', bytes(range(100))), 2, 5, seed=1);"
        "print([t.tolist() for t in next(b)])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=True
    )
    here = [t.tolist() for t in next(ByteBatches(DIGITS, 2, 5, seed=1))]
    assert out.stdout.decode().strip() == str(here)


def test_every_window_can_come_up_and_none_beyond_the_end():
    text = Text("six", b"abcdef")
    starts = {
        next(iter(tokens))[0].item()
        for tokens, _ in itertools.islice(ByteBatches(text, 1, 3, seed=0), 200)
    }
    assert starts == set(b"abc")
    tokens, targets = next(ByteBatches(Text("two", b"ab"), 1, 1))
    assert (tokens.item(), targets.item()) == (97, 98)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"batch": 0}, ShapeError, "batch=0"),
        ({"seq": 0}, ShapeError, "seq=0"),
        ({"seq": -3}, ShapeError, "seq=-3"),
        ({"seed": -1}, ShapeError, "seed=-1"),
        ({"batch": 2.0}, DTypeError, "float"),
        ({"seq": True}, DTypeError, "bool"),
        ({"seq": 100}, ShapeError, "100 bytes; windows of 100 tokens .* at least 101"),
        ({"text": b"abc"}, DTypeError, "load_text"),
    ],
)
def test_bad_batches(arguments, error, match):
    with pytest.raises(error, match=match):
        ByteBatches(**({"text": DIGITS, "batch": 2, "seq": 4} | arguments))
