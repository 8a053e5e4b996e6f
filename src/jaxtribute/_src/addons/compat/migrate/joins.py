"""`Server.join`, which returns here once the others have ended: what follows it would run on workers and servers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from jaxtribute._src.addons.compat.catalog.lookup import Kind
from jaxtribute._src.addons.compat.migrate.findings import Finding, Source
from jaxtribute._src.addons.compat.migrate.naming import Names

_JOINS = ("tf.distribute.Server.join", "tf.compat.v1.distribute.Server.join")
_EXITS = ("sys.exit", "exit", "quit", "os._exit")
_ADVICE = "TensorFlow's never returns, and here it does once the others have ended: write raise SystemExit after it"


def find(source: Source, names: Names) -> Iterator[Finding]:
    """Calls of `join` that other statements follow, with the line that ends the process before those."""
    yield from _among(source, names, source.tree.body, goes_on=False)


def _among(source: Source, names: Names, statements: Sequence[ast.stmt], *, goes_on: bool) -> Iterator[Finding]:
    """Finds them among statements, behind which others follow or not."""
    for number, statement in enumerate(statements):
        after = statements[number + 1 :]
        follows = not _ends(after[0]) if after else goes_on
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and names.called_by(call) in _JOINS and follows:
            assert isinstance(call.func, ast.Attribute)
            alone = source.lines(statement.lineno, statement.end_lineno or 0).strip() == source.of(statement)
            text = (f"\n{source.before(statement)}" if alone else "; ") + "raise SystemExit"
            column = (call.func.end_col_offset or 0) - len("join") + 1
            place = (call.func.end_lineno or 0, column, f"{names.of(call.func)}()")
            edits = (source.replace(statement, source.of(statement) + text),)
            yield Finding(*place, Kind.DIFFERENT, _ADVICE, edits)
        # What a function is followed by where it is called is not looked at.
        own = isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        for block in _blocks(statement):
            yield from _among(source, names, block, goes_on=follows and not own)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The lists of statements in a statement."""
    parts: list[ast.AST] = [statement, *getattr(statement, "handlers", []), *getattr(statement, "cases", [])]
    for part in parts:
        for field in ("body", "orelse", "finalbody"):
            yield getattr(part, field, [])


def _ends(statement: ast.stmt) -> bool:
    """True if nothing runs after a statement."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    exits = isinstance(call, ast.Call) and ast.unparse(call.func) in _EXITS
    return exits or isinstance(statement, (ast.Return, ast.Raise))
