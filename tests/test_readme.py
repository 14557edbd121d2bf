"""The README's Python runs as it stands and prints what its comments say."""

import re
from pathlib import Path

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix import tutorial
from tinygrad_helix.accounting import profile
from tinygrad_helix.commands import COMMANDS

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def test_there_is_an_example():
    assert BLOCKS


@pytest.mark.parametrize("block", BLOCKS)
def test_examples_run_and_print_what_they_say(block, capsys):
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    said = re.findall(r"^print\(.*\)  # ([^a-z\n][^=\n]*?)(?: =.*)?$", block, re.MULTILINE)
    assert len(said) == 3
    at = 0
    for line in said:  # in this order, each a line of its own
        found = re.compile(f"^{re.escape(line)}$", re.MULTILINE).search(printed, at)
        assert found, line
        at = found.end()
    assert "by op" in printed
    assert "mine" in printed


ROWS = re.findall(
    r"^\| (primitive|composed|fused, `keep\d`).*?\| (\d+) \| ([\d,]+) B \|"
    r".*\| ([\d.]+) MB \|$",
    README,
    re.MULTILINE,
)


@pytest.mark.parametrize(("form", "ops", "saved", "peak"), ROWS)
def test_the_table_of_bytes_and_peaks(form, ops, saved, peak):
    mode, _, policy = form.replace("`", "").partition(", ")
    rng = np.random.default_rng(0)
    x = th.randn(8, 128, 128, generator=rng, requires_grad=True)
    weights = dict(th.nn.HelixBlock(128, generator=rng).named_parameters())

    def block(x, **weights):
        return th.helix_block(x, *weights.values(), mode=mode, policy=policy or None)

    found = profile(block, {"x": x, **weights}, parameters=tuple(weights))
    assert found.ops == int(ops)
    assert found.counted == found.measured == int(saved.replace(",", ""))
    assert found.peak_bytes == pytest.approx(float(peak) * 1e6, rel=0.1)


def test_the_table_has_a_row_for_every_form_it_speaks_of():
    assert len(ROWS) == 7
    peaks = {form: float(peak) for form, _, _, peak in ROWS}
    assert peaks["fused, `keep1`"] > peaks["fused, `keep2`"]


def test_every_command_is_in_it():
    for name in COMMANDS:
        assert f"tinygrad_helix {name}" in README, name


def test_the_number_of_tutorials_is_the_number_of_tutorials():
    count = len([t for t in tutorial.tutorials() if t.name[0].isdigit()])
    word = {11: "eleven"}[count]
    root = Path(__file__).parents[1]
    for file in ("README.md", "CHANGELOG.md", "tutorials/README.md"):
        text = (root / file).read_text(encoding="utf-8").lower()
        assert re.search(rf"\b{word} (short |tutorials|lessons)", text), file
    assert COMMANDS["tutorial"].SUMMARY.startswith(f"{word} ")
