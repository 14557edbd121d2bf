"""The README's Python runs as it stands and prints what its comments say."""

import re
from pathlib import Path

import pytest

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
