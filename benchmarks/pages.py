"""Saved results as tables of Markdown, and the pages that show them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.comparison import Row

RESULTS = Path(__file__).with_name("results")
_SHOWN = re.compile(r"(?P<begin><!-- results: (?P<name>\w+) -->\n\n).*?(?P<end>\n\n<!-- end -->)", re.DOTALL)
"""Where a page shows a suite's results."""


def table(name: str) -> str:
    """The results of a suite; empty where none are saved or they are no comparisons."""
    path = RESULTS / f"{name}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    if name in _OTHER_TABLES:
        return _OTHER_TABLES[name](found)
    comparisons = found.get(name, [])
    if not (isinstance(comparisons, list) and comparisons and "rows" in comparisons[0]):
        return ""
    lines = ["| problem | contender | median | range | jaxtribute / it | bar |", "|---|---|---|---|---|---|"]
    for one in comparisons:
        for place, row in enumerate(Row(**row) for row in one["rows"]):
            problem = one["problem"] if place == 0 else ""
            ratio, bar = (f"{value:.3g}" if value is not None else "" for value in (row.ratio, row.bar))
            low, high = row.shown(row.low), row.shown(row.high)
            lines.append(f"| {problem} | {row.name} | {row.shown(row.median)} | {low} to {high} | {ratio} | {bar} |")
    notes = [f"- {one['problem']}: {note}" for one in comparisons for note in one.get("notes", ())]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _published(found: dict[str, Any]) -> str:
    """Predicted steps beside published ones; errors with a constant of the chip, and with that of its other rows."""
    lines = [
        "| step | published | predicted | error | without the row | waits | memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in found["rows"].items():
        if "predicted" not in row:
            lines.append(f"| {name} | {row['published']:.2f} s | {row['error']} | | | | |")
            continue
        errors = ["" if row[key] is None else f"{row[key]:+.1%}" for key in ("error", "without")]
        seconds = [f"{row[key]:.2f} s" for key in ("published", "predicted")]
        rest = [f"{row['exposed']:.2f} s", f"{row['memory'] / 1e9:.1f} GB"]
        lines.append(f"| {' | '.join([name, *seconds, *errors, *rest])} |")
    constants = ", ".join(f"{chip} {constant:.3f}" for chip, constant in sorted(found["constants"].items()))
    return "\n".join([*lines, "", f"- Rank correlation {found['rank_correlation']:.3f}; constants: {constants}."])


def _fitted(found: list[dict[str, Any]]) -> str:
    """The first choice of `plan --fit` for each model, a column for each topology, beside the best step by hand."""
    topologies = list(dict.fromkeys(row["topology"] for row in found))
    cells: dict[str, dict[str, str]] = {}
    for row in found:
        chosen = f"{row['choice']}: {row['ratio'] * row['step'] * 1e6:,.0f} us, {row['ratio']:.3f} of {row['best']}"
        cells.setdefault(row["model"], {})[row["topology"]] = chosen
    lines = [f"| model | {' | '.join(topologies)} |", "|---" * (1 + len(topologies)) + "|"]
    for model, row in cells.items():
        lines.append(f"| {' | '.join([model, *(row.get(one, '') for one in topologies)])} |")
    return "\n".join(lines)


_OTHER_TABLES: dict[str, Callable[[Any], str]] = {"published": _published, "fitted": _fitted}
"""Those of results that are no comparisons of contenders."""


def filled(page: str) -> str:
    """The text of a page with the results as they are saved now between its marks."""
    return _SHOWN.sub(lambda found: found["begin"] + table(found["name"]) + found["end"], page)


def print_tables(names: Sequence[str]) -> None:
    """Prints the saved results, each with the command that made them."""
    for name in names:
        if shown := table(name):
            print(f"`{json.loads((RESULTS / f'{name}.json').read_text())['command']}`\n\n{shown}\n")
