"""The notebook of the first hour runs from top to bottom, and what a cell ends with can be shown."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import notebook_cells
from processes import ProcessFailedError, run_python

NOTEBOOK = Path(__file__).parents[1] / "docs" / "first_hour.ipynb"
RUNNER = Path(__file__).parent / "support" / "notebook_cells.py"


def cells() -> list[dict[str, Any]]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def code() -> list[dict[str, Any]]:
    return [cell for cell in cells() if cell["cell_type"] == "code"]


def texts(outputs: list[dict[str, Any]]) -> list[str]:
    """What outputs show, its numbers left out, which are those of one machine; lines of replicas come in any order."""
    found: list[str] = []
    for output in outputs:
        data = output.get("data", {"text/plain": output.get("text", ())})
        for kind in sorted(data):
            shown = sorted(re.sub(r"\d+", "0", line) for line in data[kind])
            found.append(f"{kind} {''.join(shown)}")
    return found


@pytest.mark.slow
@pytest.mark.optimized
def test_it_runs_and_the_outputs_that_it_holds_are_of_today() -> None:
    """`python tests/support/notebook_cells.py docs/first_hour.ipynb --store` makes them so."""
    printed = run_python(RUNNER, str(NOTEBOOK))
    found = [json.loads(line) for line in printed.splitlines() if line.startswith("[")]
    assert [texts(outputs) for outputs in found] == [texts(cell["outputs"]) for cell in code()]
    assert printed.count("<svg") >= 3
    accuracy = re.search(r"epoch 4: loss [\d.]+, accuracy ([\d.]+)%", printed)
    assert accuracy is not None, printed
    assert float(accuracy[1]) > 85, printed


@pytest.mark.slow
def test_a_cell_that_raises_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.ipynb"
    broken.write_text(json.dumps({"cells": [{"cell_type": "code", "source": ["x = 1\n", "x / 0\n"]}]}))
    with pytest.raises(ProcessFailedError, match='File "cell 0", line 2'):
        run_python(RUNNER, str(broken))


def test_it_can_be_read_without_running_it_also_as_a_page_and_its_links_lead_somewhere() -> None:
    drawings = 0
    for count, cell in enumerate(code(), 1):
        assert cell["execution_count"] == count
        for output in cell["outputs"]:
            html = "".join(output.get("data", {}).get("text/html", ()))
            assert "<script" not in html  # viewers leave it out
            drawings += "<svg" in html
    assert drawings == 3
    assert NOTEBOOK.with_suffix(".md").read_text(encoding="utf-8") == notebook_cells.page(cells())
    for target in re.findall(r"\]\(([^)]+)\)", "".join("".join(cell["source"]) for cell in cells())):
        assert (NOTEBOOK.parent / target).exists(), target
