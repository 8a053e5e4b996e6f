"""The lines of a `with` block that are to become a function: which names they read and bind, and what forbids it."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Sequence

from jaxtribute._src.addons.compat.migrate.findings import nodes

# Within a function these would end or suspend that function, or bind a name of its own, and not the block's.
_LEAVES_THE_BLOCK = (
    ast.Return,
    ast.Yield,
    ast.YieldFrom,
    ast.Await,
    ast.Break,
    ast.Continue,
    ast.Global,
    ast.Nonlocal,
    ast.Delete,
    ast.NamedExpr,
)


def problem(block: ast.With) -> str:
    """Reason why the block cannot become a function without a human eye; empty if it can."""
    if block.lineno == block.body[0].lineno:
        return "the block stands on one line"
    for node in leaving(block.body):
        return f"the block holds a `{type(node).__name__.lower()}` on line {getattr(node, 'lineno', block.lineno)}"
    bound = stored(block.body)
    for node in itertools.chain.from_iterable(map(ast.walk, block.body)):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            return f"line {node.lineno} writes to `{ast.unparse(node)}`, which would keep a value that is being traced"
        if isinstance(node, ast.Call) and (asked := _number_of(node, bound)):
            return f"line {node.lineno} asks for the numbers in `{asked}`, which is being traced"
    return ""


def _number_of(call: ast.Call, bound: set[str]) -> str:
    """Finds the `x` of a call `x.numpy()` or `np.asarray(x)`, if the block computes it; empty otherwise."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "numpy":
        return ast.unparse(call.func.value) if loaded([call.func.value]) & bound else ""
    if ast.unparse(call.func) in ("np.asarray", "np.array", "numpy.asarray", "numpy.array"):
        return ast.unparse(call.args[0]) if call.args and loaded(call.args) & bound else ""
    return ""


def leaving(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Finds what would leave these statements, and not only a loop or a function among them."""
    for node in statements:
        if isinstance(node, _LEAVES_THE_BLOCK):
            yield node
        inner = leaving(ast.iter_child_nodes(node))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            inner = (one for one in inner if not isinstance(one, (ast.Break, ast.Continue)))
        yield from inner


def _names(statements: Sequence[ast.AST]) -> Iterator[ast.Name]:
    """The names in statements but those of comprehensions, which are unknown outside of them."""
    for statement in statements:
        inner: set[ast.AST] = set()
        for part in ast.walk(statement):
            if isinstance(part, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
                own = _stored_in(target for one in part.generators for target in ast.walk(one.target))
                inner |= {name for name in nodes(part, ast.Name) if name.id in own}
        yield from (name for name in nodes(statement, ast.Name) if name not in inner)


def _stored_in(parts: Iterable[ast.AST]) -> set[str]:
    return {part.id for part in parts if isinstance(part, ast.Name)}


def stored(statements: Sequence[ast.AST]) -> set[str]:
    """The names that statements bind."""
    return {name.id for name in _names(statements) if isinstance(name.ctx, ast.Store)}


def loaded(statements: Sequence[ast.AST]) -> set[str]:
    """The names that statements read."""
    return {name.id for name in _names(statements) if isinstance(name.ctx, ast.Load)}


def read_before_stored(statements: Sequence[ast.stmt]) -> set[str]:
    """The names that statements bind, but read before: in a function such a name has no value there."""
    known, early, binds = set[str](), set[str](), stored(statements)
    for parts in _in_order(statements):
        # `x += 1` reads what it writes, but Python's tree marks the name as written only.
        changed = stored([part for part in parts if isinstance(part, ast.AugAssign)])
        early |= ((loaded(parts) | changed) & binds) - known
        known |= stored(parts)
    return early


def _in_order(statements: Iterable[ast.AST]) -> Iterator[list[ast.AST]]:
    """Yields what runs, part by part: of a loop or a condition first the head, then its lines."""
    for statement in statements:
        inner = [child for child in ast.iter_child_nodes(statement) if isinstance(child, (ast.stmt, ast.excepthandler))]
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) or not inner:
            yield [statement]
            continue
        yield [child for child in ast.iter_child_nodes(statement) if child not in inner]
        yield from _in_order(inner)
