"""Plain English: the first words of docstrings."""

import ast
import re
from collections.abc import Generator
from pathlib import Path

import pytest

import jaxtribute as jd

SOURCE = Path(jd.__file__).parent
HEADLESS = re.compile(r"(What|Whether|How|Where|Which|Who|As|Why|When)\b")


def docstrings(tree: ast.AST) -> Generator[tuple[int, str]]:
    """Lines and texts of all docstrings, those of attributes and constants among them."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for one in body if isinstance(body, list) else ():
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                yield one.lineno, one.value.value.strip()


@pytest.mark.parametrize(
    "room", sorted({"/".join(path.relative_to(SOURCE).parts[:2]) for path in SOURCE.rglob("*.py")})
)
def test_docstrings_begin_with_a_verb_or_a_noun(room: str) -> None:
    """Functions begin with a verb, values and classes with a noun, flags with "True if"."""
    found = SOURCE / room
    files = [found] if found.is_file() else sorted(found.rglob("*.py"))
    headless = [
        f"{path.relative_to(SOURCE)}:{line}: {text.splitlines()[0]}"
        for path in files
        for line, text in docstrings(ast.parse(path.read_text(encoding="utf-8")))
        if HEADLESS.match(text)
    ]
    assert headless == []
