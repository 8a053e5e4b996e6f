"""A GPT's set-up, step and loop on the page: as few lines as it says."""

import re
from pathlib import Path

from documents import blocks

PAGE = (Path(__file__).parents[4] / "docs" / "guide" / "frameworks.md").read_text(encoding="utf-8")
NUMBERS = {"eight": 8, "nine": 9, "twelve": 12, "three": 3}


def lines(beginning: str) -> list[str]:
    """The lines of the page's block that begins so, without empty ones."""
    (found,) = [code for _, kind, code in blocks(PAGE) if kind == "python" and code.startswith(beginning)]
    return [line for line in found.splitlines() if line.strip()]


def test_the_gpt_takes_eight_lines_and_by_hand_twelve() -> None:
    assert "## A GPT in eight lines" in PAGE
    ours = lines("strategy = jd.MirroredStrategy")
    assert len(ours) == 8
    assert all(len(line) <= 100 and ";" not in line for line in ours)
    words = re.search(r"By hand the same is (\w+) lines, (\w+) on one device and (\w+) for the shardings", PAGE)
    assert words is not None
    whole, alone, shardings = (NUMBERS[word] for word in words.groups())
    by_hand = lines("mesh = jax.sharding.Mesh")
    assert len(by_hand) == whole == alone + shardings
    assert sum("mesh" in line or "copies" in line for line in by_hand) == shardings
