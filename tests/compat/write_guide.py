"""Writes the generated parts of docs/migration.md:

    PYTHONPATH=tests python -m compat.write_guide

Run it when a name appears or an example changes; `test_guide` fails until then.
"""

import re
from pathlib import Path

from compat.seed_cases import CASES, Case
from jaxtribute._src.compat.catalog.guide import names_table, others_table

GUIDE = Path(__file__).parents[2] / "docs" / "migration.md"


def examples_table() -> str:
    """The examples that do not run by themselves, or show something else here."""
    lines = ["| example | begins with or holds | why | prelude, repairs |", "|---|---|---|---|"]
    for case in CASES:
        if case.why:
            lines.append(f"| {case.name} | `{case.mark}` | {case.why} | {_code(case)} |")
        lines += [f"| {case.name} | `{statement}` | {reason} | |" for statement, reason in case.differs.items()]
    return "\n".join(lines)


def _code(case: Case) -> str:
    pieces = [f"`{line.strip()}`" for line in case.prelude.strip().split("\n") if line.strip()]
    pieces += [f"`{new.strip()}`" for _, new in case.repairs]
    return "<br>".join(pieces).replace("|", "\\|")


def with_tables(text: str) -> str:
    """The guide with its generated parts made anew."""
    for name, table in (("names", names_table()), ("others", others_table()), ("examples", examples_table())):
        pattern = rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda found, table=table: f"{found[1]}\n{table}\n\n{found[2]}", text, flags=re.DOTALL)
    return text


if __name__ == "__main__":
    GUIDE.write_text(with_tables(GUIDE.read_text()))
