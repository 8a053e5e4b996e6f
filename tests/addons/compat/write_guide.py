"""Writes the generated parts of docs/migration.md:

    PYTHONPATH=tests:tests/addons python -m compat.write_guide

Run it when a name appears or an example changes; `test_guide` fails until then.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from compat.seed_cases import CASES, Case
from jaxtribute._src.addons.compat.catalog.distribute import MODULES
from jaxtribute._src.addons.compat.catalog.lookup import Entry, Kind, distribute_entries, exists
from jaxtribute._src.addons.compat.catalog.others import ABSENT, DIFFERENT, LIBRARIES, NEEDS_TENSORFLOW, REMARKS

GUIDE = Path(__file__).parents[3] / "docs" / "migration.md"


def names_table() -> str:
    """All public names of `tf.distribute`, module by module: where they are, what differs, and why some are absent."""
    return "\n".join(_names_lines())


def others_table() -> str:
    """The names outside `tf.distribute` of which something is to be said."""
    lines = ["| TensorFlow | here | what differs, what to write |", "|---|---|---|"]
    known = {**{name: ("different", note) for name, note in DIFFERENT.items()}}
    known |= {name: ("same", note) for name, note in (REMARKS | LIBRARIES).items()}
    # What is said of the names below a module that is there, is not said of the module.
    absent = {f"{name}.…" if exists(name) else name: note for name, note in ABSENT.items()} | NEEDS_TENSORFLOW
    known |= {name: ("absent", note) for name, note in absent.items()}
    lines += [f"| `{name}` | {kind} | {_cell(note)} |" for name, (kind, note) in sorted(known.items())]
    return "\n".join(lines)


def _names_lines() -> Iterator[str]:
    entries = distribute_entries()
    for prefix, module in MODULES.items():
        yield f"### `{prefix}`\n"
        yield "| TensorFlow | here | members | what differs and why |"
        yield "|---|---|---|---|"
        for name, members in module.names.items():
            own = [entries[f"{prefix}.{name}.{member}"] for member in members.split()]
            entry = entries[f"{prefix}.{name}"]
            yield _row(f"`{name}`", entry, _count(entry, own))
            for member in own:
                absent_alone = member.kind is Kind.ABSENT and entry.kind is not Kind.ABSENT
                if absent_alone or (member.note and member.kind is not Kind.ABSENT):
                    yield _row(f"`{member.name.removeprefix(prefix + '.')}`", member, "")
        yield ""


def _row(name: str, entry: Entry, count: str) -> str:
    here = "absent" if entry.kind is Kind.ABSENT else f"`{entry.here}`"
    return f"| {name} | {here} | {count} | {_cell(entry.note)} |"


def _count(entry: Entry, members: list[Entry]) -> str:
    if not members or entry.kind is Kind.ABSENT:
        return ""
    return f"{sum(member.kind is not Kind.ABSENT for member in members)} of {len(members)}"


def _cell(note: str) -> str:
    return (note[:1].upper() + note[1:]).replace("|", "\\|")


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
