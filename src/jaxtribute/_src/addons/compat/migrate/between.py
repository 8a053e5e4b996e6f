"""The lines between a tape's block and its gradient: which of them can as well run before the block."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from typing import TypeAlias

from jaxtribute._src.addons.compat.migrate.blocks import leaving, loaded, stored
from jaxtribute._src.addons.compat.migrate.findings import Edit, Source, nodes

_Names: TypeAlias = set[str]
_HARMLESS = {
    "list", "tuple", "set", "dict", "sorted", "reversed", "sum", "zip", "filter", "map", "len", "range", "enumerate",
    "isinstance", "getattr", "hasattr", "any", "all", "id", "chain", "from_iterable",
}  # fmt: skip
"""Functions that only make a list of what they are given, or ask about it."""
_HARMLESS_METHODS = {
    "append", "extend", "insert", "values", "items", "keys", "startswith", "endswith", "split", "lower", "copy",
    "get_layer",
}  # fmt: skip


def written(statements: Sequence[ast.stmt]) -> _Names:
    """The names that statements bind, and those to parts of whose objects they write: `x.a = 1`, `x.append(1)`."""
    found = stored(statements)
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
                found |= loaded([node.value])
        # A call that stands alone is there for what it does.
        for alone in nodes(statement, ast.Expr):
            if isinstance(alone.value, ast.Call) and isinstance(alone.value.func, ast.Attribute):
                found |= loaded([alone.value.func.value])
    return found


def movable(source: Source, block: ast.With, between: Sequence[ast.stmt], needed: _Names) -> list[ast.stmt]:
    """Finds the statements that give names their values, and can run before the block.

    Args:
      source: the program.
      block: the `with` statement.
      between: what stands behind it, before the gradient.
      needed: the names that the gradient needs.

    Raises:
      ValueError: something else would change if they ran there.
    """
    moved: list[ast.stmt] = []
    wanted = set(needed)
    for statement in reversed(between):
        if written([statement]) & wanted:
            moved.insert(0, statement)
            wanted |= loaded([statement]) | stored([statement])
    changed = written(moved)
    name = sorted(changed & needed)[0]
    bound, read = stored(block.body), loaded([block])
    if (loaded(moved) | changed) & bound or changed & read:
        raise ValueError(f"`{name}` changes between the block and the gradient")
    for number, statement in enumerate(between):
        later = written([one for one in between[number + 1 :] if one in moved])
        if statement not in moved and later & (loaded([statement]) | written([statement])):
            raise ValueError(f"`{name}` changes between the block and the gradient")
    if not all(_harmless(one) and _alone(source, one) for one in moved):
        lines = sorted({one.lineno for one in moved})
        which = f"line {lines[0]}" if len(lines) == 1 else f"lines {', '.join(map(str, lines))}"
        raise ValueError(
            f"`{name}` is made between the block and the gradient: if it does not matter which comes first, move "
            f"{which} above the `with`"
        )
    return moved


def _harmless(statement: ast.stmt) -> bool:
    """True if a statement does nothing but make lists of what there is."""
    for call in nodes(statement, ast.Call):
        known = _HARMLESS_METHODS | _HARMLESS if isinstance(call.func, ast.Attribute) else _HARMLESS
        if ast.unparse(call.func).rpartition(".")[2] not in known:
            return False
    kinds = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.For, ast.If)
    return isinstance(statement, kinds) and not any(leaving([statement]))


def _alone(source: Source, statement: ast.stmt) -> bool:
    """True if no other statement stands on the lines of this one."""
    text = source.lines(statement.lineno, statement.end_lineno or 0).strip()
    rest = text.removeprefix(source.of(statement)).strip()
    return text.startswith(source.of(statement)) and (not rest or rest.startswith("#"))


def apart(source: Source, block: ast.With, among: Sequence[ast.stmt], uses: set[ast.Name]) -> list[Edit]:
    """Puts statements that share a line on lines of their own, since edits take away whole lines.

    Args:
      source: the program.
      block: a tape's block.
      among: the statements that it is one of; those up to the last that uses the tape are put apart.
      uses: the places that mean the tape.
    """
    first = among.index(block)
    last = max(place for place, one in enumerate(among) if one is block or not uses.isdisjoint(nodes(one, ast.Name)))
    edits: list[Edit] = []
    for statements in (block.body, among[first : last + 2]):
        indent = source.before(statements[0])
        for one, following in () if indent.strip() else itertools.pairwise(statements):
            if one.end_lineno == following.lineno:
                edits.append(Edit(source.span(one)[1], source.span(following)[0], f"\n{indent}"))
    return edits
