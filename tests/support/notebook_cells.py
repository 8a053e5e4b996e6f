"""Runs the cells of a notebook as its viewer would, and gives what they show as the notebook's outputs.

    python tests/support/notebook_cells.py NOTEBOOK [--store]

prints a line of JSON for each cell of code: the list of its outputs. With `--store` they go into the notebook, and the
notebook into a page of Markdown beside it.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

Output = dict[str, Any]


def run(cells: list[dict[str, Any]]) -> list[list[Output]]:
    """The outputs of each cell of code, run in order in one namespace."""
    names: dict[str, Any] = {"__name__": "__main__"}
    found: list[list[Output]] = []
    for number, cell in enumerate(cells):
        if cell["cell_type"] != "code":
            continue
        body = ast.parse("".join(cell["source"]), f"cell {number}")
        last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
        printed, shown = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            exec(compile(body, f"cell {number}", "exec"), names)
            if isinstance(last, ast.Expr):
                shown = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
        outputs: list[Output] = []
        if printed.getvalue():
            outputs.append({"output_type": "stream", "name": "stdout", "text": lines(printed.getvalue())})
        if shown is not None:
            outputs.append(result(shown, len(found) + 1))
        found.append(outputs)
    return found


def result(shown: Any, count: int) -> Output:
    """The output of a cell that ends with a value."""
    data = {"text/plain": lines(repr(shown))}
    as_html = getattr(shown, "_repr_html_", None)
    if as_html is not None:
        data["text/html"] = lines(as_html())
    return {"output_type": "execute_result", "execution_count": count, "data": data, "metadata": {}}


def lines(text: str) -> list[str]:
    """Text as notebooks keep it."""
    return text.splitlines(keepends=True)


def page(cells: list[dict[str, Any]]) -> str:
    """The notebook as a page of Markdown: its text, its code, and what each cell shows."""
    parts: list[str] = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "text/html" in data:
                # No empty line, which would end a block of HTML.
                shown = "\n".join(filter(None, "".join(data["text/html"]).splitlines()))
                parts.append(f'<div class="output">{shown}</div>')
            else:
                parts.append(f"```text\n{''.join(output.get('text', data.get('text/plain', ()))).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def main(path: Path, *, store: bool) -> None:
    """Runs a notebook."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    found = run(notebook["cells"])
    for outputs in found:
        sys.stdout.write(json.dumps(outputs) + "\n")
    if store:
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for count, (cell, outputs) in enumerate(zip(code, found, strict=True), 1):
            cell["outputs"], cell["execution_count"] = outputs, count
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        path.with_suffix(".md").write_text(page(notebook["cells"]), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), store="--store" in sys.argv)
