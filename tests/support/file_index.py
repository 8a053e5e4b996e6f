"""Writes `docs/files.md`: every file of the source in a line, as the file itself says it.

python tests/support/file_index.py
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "files.md"
SOURCE = ROOT / "src" / "jaxtribute" / "_src"
HEAD = """# Every file in a line

The files of `src/jaxtribute/_src/`, room by room, each with the first sentence of its docstring. How the rooms belong
together says [the architecture](architecture.md). `python tests/support/file_index.py` writes this page.
"""


def sentence(path: Path) -> str:
    """The first paragraph of a module's docstring, in one line."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")


def page() -> str:
    """The whole page."""
    rooms: dict[str, list[Path]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        rooms.setdefault(str(path.parent.relative_to(SOURCE)), []).append(path)
    lines = [HEAD]
    for room, paths in sorted(rooms.items(), key=lambda item: (item[0] == ".", item[0])):
        about = sentence(paths[0]) if paths[0].name == "__init__.py" else ""
        lines += [f"## {'directly in _src' if room == '.' else room}", "", about, ""] if about else [f"## {room}", ""]
        lines += ["| file | |", "|---|---|"]
        lines += [f"| `{path.name}` | {sentence(path)} |" for path in paths if path.name != "__init__.py"]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
