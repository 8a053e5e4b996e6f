"""`tf.GradientTape` into `jd.value_and_grad`: the lines of the `with` block become a function."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from jaxtribute._src.addons.compat.migrate.findings import Edit, Source, nodes
from jaxtribute._src.addons.compat.migrate.naming import Names

Scope: TypeAlias = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef

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


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Plan for a tape.

    Attributes:
      problem: why it has to be done by hand; empty if it has not.
      text: the lines that take its place.
      edits: the change.
    """

    problem: str = ""
    text: str = ""
    edits: tuple[Edit, ...] = ()


def find_tapes(tree: ast.Module, names: Names) -> dict[ast.expr, tuple[ast.With, Sequence[ast.stmt], Scope]]:
    """The `with tf.GradientTape() as tape` blocks, by the expression, each with the statements it stands among."""
    found: dict[ast.expr, tuple[ast.With, Sequence[ast.stmt], Scope]] = {}

    def visit(node: ast.AST, scope: Scope) -> None:
        scope = node if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else scope
        # By lists of statements, not by blocks: what follows a block in its list is where the gradient is looked for.
        for field in ("body", "orelse", "finalbody"):
            statements: list[ast.stmt] = getattr(node, field, [])
            for statement in statements if isinstance(statements, list) else []:
                if isinstance(statement, ast.With) and len(statement.items) == 1:
                    call = statement.items[0].context_expr
                    if isinstance(call, ast.Call) and names.of(call.func) == "tf.GradientTape":
                        found[call.func] = (statement, statements, scope)
        for child in ast.iter_child_nodes(node):
            visit(child, scope)

    visit(tree, tree)
    return found


def rewrite(source: Source, block: ast.With, among: Sequence[ast.stmt], scope: Scope, function: str) -> Rewrite:
    """Works out what a tape becomes.

    Args:
      source: the program.
      block: the `with` statement.
      among: the statements that it is one of.
      scope: the function around it, or the module.
      function: a free name for the function that it becomes.
    """
    tape = block.items[0].optional_vars
    if not isinstance(tape, ast.Name):
        return Rewrite("the tape has no name")
    position = among.index(block)
    gradient = _gradient_call(among[position + 1 :], tape.id)
    if gradient is None:
        return Rewrite(f"there is no `grads = {tape.id}.gradient(loss, variables)` after the block")
    statement, call = gradient
    loss, variables = call.args
    if not isinstance(loss, ast.Name):
        return Rewrite(f"`{source.of(loss)}` is computed outside the block: give it a name inside")
    between = among[position + 1 : among.index(statement)]
    problem = _problem(block, scope, tape.id, statement, loss.id, variables, between)
    if problem:
        return Rewrite(problem)
    # What is assigned in the block and read after it: a function has to hand that out.
    shown = _used_elsewhere(block, scope, call) & _stored(block.body)
    aux = sorted(shown - {loss.id})
    text = _text(source, block, statement, loss.id, source.of(variables), aux, function)
    edits = (
        source.replace_lines(block.lineno, block.end_lineno or 0, text),
        source.replace_lines(statement.lineno, statement.end_lineno or 0, ""),
    )
    return Rewrite("", text, edits)


def _gradient_call(after: Sequence[ast.stmt], tape: str) -> tuple[ast.Assign, ast.Call] | None:
    for statement in after:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.value, ast.Call):
            call = statement.value
            function = call.func
            if (
                isinstance(function, ast.Attribute)
                and function.attr == "gradient"
                and isinstance(function.value, ast.Name)
                and function.value.id == tape
            ):
                # Any further argument, or one by keyword, asks for more than `jd.value_and_grad` gives.
                return (statement, call) if len(call.args) == 2 and not call.keywords else None
    return None


def _problem(
    block: ast.With,
    scope: Scope,
    tape: str,
    statement: ast.Assign,
    loss: str,
    variables: ast.expr,
    between: Sequence[ast.stmt],
) -> str:
    """Reason why the block cannot become a function without a human eye; empty if it can."""
    # Any other use, such as `tape.watch`, does something that the function would not.
    uses = [name for name in nodes(scope, ast.Name) if name.id == tape]
    if len(uses) != 2:
        return f"`{tape}` is used more than once"
    if block.lineno == block.body[0].lineno:
        return "the block stands on one line"
    for node in itertools.chain.from_iterable(map(ast.walk, block.body)):
        if isinstance(node, _LEAVES_THE_BLOCK):
            return f"the block holds a `{type(node).__name__.lower()}` on line {getattr(node, 'lineno', block.lineno)}"
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            return f"line {node.lineno} writes to `{ast.unparse(node)}`, which would keep a value that is being traced"
    # In a function an assignment anywhere makes the name local, and reading it before fails.
    early = _read_before_stored(block.body)
    if early:
        return f"`{sorted(early)[0]}` is read in the block before it is assigned there"
    stored = _stored(block.body)
    if loss not in stored:
        return f"`{loss}` is not assigned in the block"
    needed = _loaded([ast.Expr(variables)]) | _stored([statement])
    # The gradient is taken where the block was: what it needs must be the same there.
    moved = (_stored(between) | stored) & needed
    return f"`{sorted(moved)[0]}` changes between the block and the gradient" if moved else ""


def _head_end(source: Source, block: ast.With) -> int:
    """The last line of a `with` statement's head, which brackets may spread over several."""
    number = block.items[-1].context_expr.end_lineno or block.lineno
    # Comments and brackets may follow the expression; only a line that ends the head ends with a colon.
    while not source.line(number).partition("#")[0].rstrip().endswith(":"):
        number += 1
    return number


def _text(
    source: Source, block: ast.With, statement: ast.Assign, loss: str, variables: str, aux: Sequence[str], function: str
) -> str:
    indent = " " * block.col_offset
    inner = " " * block.body[0].col_offset
    body = source.lines(_head_end(source, block) + 1, block.end_lineno or 0)
    # The block may be the end of a file that lacks its last newline.
    body = body if body.endswith("\n") else body + "\n"
    target = source.of(statement.targets[0])
    # In brackets, since it becomes one part of a longer target.
    if isinstance(statement.targets[0], ast.Tuple) and not target.startswith("("):
        target = f"({target})"
    others = f"({', '.join(aux)}{',' if len(aux) == 1 else ''})"
    returned = f"{loss}, {others}" if aux else loss
    given = f"({loss}, {others})" if aux else loss
    call = f"jd.value_and_grad({function}, {variables}{', has_aux=True' if aux else ''})()"
    return f"{indent}def {function}():\n{body}{inner}return {returned}\n{indent}{given}, {target} = {call}\n"


def _used_elsewhere(block: ast.With, scope: Scope, call: ast.Call) -> set[str]:
    # The loss in `tape.gradient(loss, ...)` is no reason to hand it out: that call goes away.
    inside = {*ast.walk(block), call.args[0]}
    found: set[str] = set()
    for name in nodes(scope, ast.Name):
        if isinstance(name.ctx, ast.Load) and name not in inside:
            found.add(name.id)
    return found


def _names(statements: Sequence[ast.stmt]) -> Iterator[ast.Name]:
    for statement in statements:
        yield from nodes(statement, ast.Name)


def _stored(statements: Sequence[ast.stmt]) -> set[str]:
    return {name.id for name in _names(statements) if isinstance(name.ctx, ast.Store)}


def _loaded(statements: Sequence[ast.stmt]) -> set[str]:
    return {name.id for name in _names(statements) if isinstance(name.ctx, ast.Load)}


def _read_before_stored(statements: Sequence[ast.stmt]) -> set[str]:
    stored, early, all_stored = set[str](), set[str](), _stored(statements)
    for statement in statements:
        # `x += 1` reads what it writes, but Python's tree marks the name as written only.
        changed = _stored([statement]) if isinstance(statement, ast.AugAssign) else set[str]()
        early |= ((_loaded([statement]) | changed) & all_stored) - stored
        stored |= _stored([statement])
    return early
