"""The notebook of the first hour runs from top to bottom, and what a cell ends with can be shown."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from processes import ProcessFailedError, run_python

NOTEBOOK = Path(__file__).parents[1] / "docs" / "first_hour.ipynb"
RUNNER = """
    import ast, json, sys
    from pathlib import Path

    names = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] != "code":
            continue
        body = ast.parse("".join(cell["source"]), f"cell {number}")
        last = body.body.pop() if isinstance(body.body[-1], ast.Expr) else None
        exec(compile(body, f"cell {number}", "exec"), names)
        if last is not None:
            shown = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
            html = getattr(shown, "_repr_html_", None)
            print(f"cell {number}:", "drawing" if html and "<svg" in html() else repr(shown))
"""


def cells() -> list[dict[str, Any]]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


@pytest.mark.slow
def test_it_runs() -> None:
    printed = run_python(RUNNER, str(NOTEBOOK))
    assert printed.count(": drawing") == 3
    assert "MirroredStrategy with 4 replica(s)" in printed
    found = re.search(r"epoch 4: loss [\d.]+, accuracy ([\d.]+)%", printed)
    assert found is not None, printed
    assert float(found[1]) > 85, printed
    assert printed.count("of 4 has") == 4, "each replica printed"


@pytest.mark.slow
def test_a_cell_that_raises_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.ipynb"
    broken.write_text(json.dumps({"cells": [{"cell_type": "code", "source": ["x = 1\n", "x / 0\n"]}]}))
    with pytest.raises(ProcessFailedError, match='File "cell 0", line 2'):
        run_python(RUNNER, str(broken))


def test_it_is_kept_without_outputs_and_its_links_lead_somewhere() -> None:
    text = ""
    for cell in cells():
        text += "".join(cell["source"])
        assert not cell.get("outputs"), "clear the outputs before saving"
        assert cell.get("execution_count") is None
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (NOTEBOOK.parent / target).exists(), target
