"""Plain English: the first words of docstrings, words that readers stop at, and names that say nothing."""

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import pytest

import jaxtribute as jd

SOURCE = Path(jd.__file__).parent
CORE = sorted((SOURCE / "_src" / "core").rglob("*.py"))
HEADLESS = re.compile(r"(What|Whether|How|Where|Which|Who|As|Why|When)\b")
STUMBLES = {
    re.compile(r"\b(None|empty|False|True|0|-1) where\b"): "a condition is said by `if`",
    re.compile(r"\bwhere there (is|are|was|were)\b", re.I): "a condition is said by `if`",
    re.compile(r"\banew\b"): "again",
    re.compile(r"\b(behind (each other|them|one another))\b"): "one after another, then",
    re.compile(r"\bmidst\b|\bmanyeth\b|\bwhatsoever\b"): "an everyday word",
}
EMPTY_NAMES = {"found": 2, "given": 36, "one": 52}
"""Names that say nothing of a value, and how many places of the core still assign them: these may only become fewer."""


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


def prose(text: str) -> Generator[tuple[int, str]]:
    """Lines and texts of docstrings and comments."""
    yield from docstrings(ast.parse(text))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_words_that_readers_stop_at_are_not_used_in_the_core() -> None:
    stumbles = [
        f"{path.relative_to(SOURCE)}:{line}: {match[0]!r}: write {instead}"
        for path in CORE
        for line, text in prose(path.read_text(encoding="utf-8"))
        for pattern, instead in STUMBLES.items()
        if (match := pattern.search(" ".join(text.split())))
    ]
    assert stumbles == []


def test_names_that_say_nothing_become_fewer() -> None:
    counts = Counter(
        name
        for path in CORE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in [node.arg if isinstance(node, ast.arg) else getattr(node, "id", "")]
        if name in EMPTY_NAMES and (isinstance(node, ast.arg) or isinstance(getattr(node, "ctx", None), ast.Store))
    )
    assert {name: counts[name] for name in EMPTY_NAMES if counts[name] > EMPTY_NAMES[name]} == {}
