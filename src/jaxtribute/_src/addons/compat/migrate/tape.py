"""`tf.GradientTape` into `jd.value_and_grad`: the lines of the `with` block become a function."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
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


@dataclass(frozen=True, slots=True)
class Tapes:
    """A `with tf.GradientTape() as tape` block, of a tape or of several.

    Attributes:
      block: the `with` statement.
      among: the statements that it is one of.
      scope: the function around it, or the module.
    """

    block: ast.With
    among: Sequence[ast.stmt]
    scope: Scope


@dataclass(frozen=True, slots=True)
class _Gradient:
    """A call `tape.gradient(loss, variables)`.

    Attributes:
      call: the call.
      statement: the statement after the block that holds it.
      loss: the name of the loss.
      variables: the expression of the variables.
    """

    call: ast.Call
    statement: ast.stmt
    loss: str
    variables: ast.expr

    @property
    def target(self) -> ast.expr | None:
        """Target of the statement, if it does nothing but assign the gradients."""
        one = self.statement
        return (
            one.targets[0] if isinstance(one, ast.Assign) and len(one.targets) == 1 and one.value is self.call else None
        )


def find_tapes(tree: ast.Module, names: Names) -> dict[ast.expr, Tapes]:
    """The blocks of tapes, by the expressions of their tapes."""
    found: dict[ast.expr, Tapes] = {}

    def visit(node: ast.AST, scope: Scope) -> None:
        scope = node if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else scope
        # By lists of statements, not by blocks: what follows a block in its list is where the gradient is looked for.
        for field in ("body", "orelse", "finalbody"):
            statements: list[ast.stmt] = getattr(node, field, [])
            for statement in statements if isinstance(statements, list) else []:
                if isinstance(statement, ast.With):
                    calls = [item.context_expr for item in statement.items]
                    if all(names.called_by(call) == "tf.GradientTape" for call in calls):
                        block = Tapes(statement, statements, scope)
                        found.update({call.func: block for call in calls if isinstance(call, ast.Call)})
        for child in ast.iter_child_nodes(node):
            visit(child, scope)

    visit(tree, tree)
    return found


def rewrite(source: Source, tapes: Tapes, function: str) -> Rewrite:
    """Works out what tapes become.

    Args:
      source: the program.
      tapes: the block.
      function: a free name for the function that it becomes.
    """
    block, scope = tapes.block, tapes.scope
    names = [item.optional_vars.id for item in block.items if isinstance(item.optional_vars, ast.Name)]
    if len(names) < len(block.items):
        return Rewrite("the tape has no name")
    after = tapes.among[tapes.among.index(block) + 1 :]
    try:
        gradients = _gradients(source, tapes, names, after)
    except ValueError as problem:
        return Rewrite(str(problem))
    stored = _stored(block.body)
    late = False
    for one in gradients:
        between = after[: after.index(one.statement)]
        target = [] if one.target is None else [ast.Assign([one.target], one.call)]
        needed = _loaded([ast.Expr(one.variables)]) | _stored(target)
        # The gradient is taken where the block was: what it needs must be the same there.
        moved = (_stored(between) | stored) & needed
        if moved:
            # Names that have nothing to do with the block may as well be assigned before it.
            late = not (_loaded(between) | needed) & stored and all(isinstance(one, ast.Assign) for one in between)
            if not late or len(gradients) > 1:
                return Rewrite(f"`{sorted(moved)[0]}` changes between the block and the gradient")
    # What is assigned in the block and read after it: a function has to hand that out.
    shown = _used_elsewhere(block, scope, gradients) & stored
    losses = {one.loss for one in gradients}
    aux = sorted(shown - losses)
    results, edits = _results(source, gradients, {name.id for name in nodes(scope, ast.Name)})
    text = _text(source, block, gradients, results, aux, function)
    first = gradients[0].statement
    place = source.place(first.lineno, 0)
    edits += (
        source.replace_lines(block.lineno, block.end_lineno or 0, "" if late else text),
        *([Edit(place, place, text)] if late else []),
    )
    for statement in _deleted(scope, _uses(tapes, names)):
        edits += (source.replace_lines(statement.lineno, statement.end_lineno or 0, ""),)
    return Rewrite("", text, edits)


def _uses(tapes: Tapes, names: Sequence[str]) -> set[ast.Name]:
    """The places that mean these tapes: another block may give a name to a tape of its own further down."""
    place = attrgetter("lineno", "col_offset")
    found: set[ast.Name] = set()
    for item in tapes.block.items:
        own = item.optional_vars
        if not isinstance(own, ast.Name) or own.id not in names:
            continue
        same = [name for name in nodes(tapes.scope, ast.Name) if name.id == own.id]
        bound = sorted(place(name) for name in same if isinstance(name.ctx, ast.Store))
        for name in same:
            before = [one for one in bound if one <= place(name)]
            # Before all of them it may be any, in a later turn of a loop.
            if name is not own and (not before or before[-1] == place(own)):
                found.add(name)
    return found


def _deleted(scope: Scope, uses: set[ast.Name]) -> list[ast.Delete]:
    """Statements `del tape`, of these tapes alone."""
    return [one for one in nodes(scope, ast.Delete) if uses.issuperset(one.targets)]


def _gradients(source: Source, tapes: Tapes, names: Sequence[str], after: Sequence[ast.stmt]) -> list[_Gradient]:
    """Finds what is asked of tapes.

    Raises:
      ValueError: something that no function gives; the reason why.
    """
    block, uses = tapes.block, _uses(tapes, names)
    found: list[_Gradient] = []
    for statement in after:
        # What a loop or a function holds may run more than once, or never.
        repeated: set[ast.AST] = set()
        for part in ast.walk(statement):
            if isinstance(part, (ast.For, ast.While, ast.FunctionDef, ast.Lambda)):
                repeated.update(ast.walk(part))
        for call in sorted(nodes(statement, ast.Call), key=attrgetter("lineno", "col_offset")):
            method = call.func
            if not isinstance(method, ast.Attribute) or method.attr != "gradient" or call in repeated:
                continue
            if method.value in uses:
                # Any further argument, or one by keyword, asks for more than `jd.value_and_grad` gives.
                if len(call.args) != 2 or call.keywords:
                    raise ValueError(f"`{source.of(call)}` asks for more than a gradient")
                if not isinstance(call.args[0], ast.Name):
                    raise ValueError(
                        f"`{source.of(call.args[0])}` is computed outside the block: give it a name inside"
                    )
                found.append(_Gradient(call, statement, call.args[0].id, call.args[1]))
    if not found:
        raise ValueError(f"there is no `grads = {names[0]}.gradient(loss, variables)` after the block")
    # Any other use, such as `tape.watch`, does something that the function would not.
    rest = uses.difference(
        *(one.targets for one in _deleted(tapes.scope, uses)), *(nodes(one.call.func, ast.Name) for one in found)
    )
    for name in sorted(rest, key=attrgetter("lineno", "col_offset")):
        raise ValueError(_other_use(tapes.scope, name))
    problem = _problem(block, {one.loss for one in found})
    if problem:
        raise ValueError(problem)
    return found


def _other_use(scope: Scope, name: ast.Name) -> str:
    """Reason why a use of a tape is no gradient right after its block."""
    for part in nodes(scope, ast.Call):
        if isinstance(part.func, ast.Attribute) and part.func.value is name and part.func.attr == "watch":
            what = ast.unparse(part.args[0]) if part.args else "x"
            return (
                f"`{name.id}.watch({what})` asks for a gradient by an array: make `{what}` an argument of the "
                "function, and write jax.value_and_grad"
            )
    return f"line {name.lineno} uses `{name.id}` for more than a gradient right after the block"


def _problem(block: ast.With, losses: set[str]) -> str:
    """Reason why the block cannot become a function without a human eye; empty if it can."""
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
    missing = losses - _stored(block.body)
    return f"`{sorted(missing)[0]}` is not assigned in the block" if missing else ""


def _results(source: Source, gradients: Sequence[_Gradient], taken: set[str]) -> tuple[list[str], tuple[Edit, ...]]:
    """Targets of the gradients, and the edits that put them where the tape was asked."""
    results: list[str] = []
    edits: tuple[Edit, ...] = ()
    for one in gradients:
        if one.target is not None:
            text = source.of(one.target)
            # In brackets, since it becomes one part of a longer target.
            results.append(f"({text})" if isinstance(one.target, ast.Tuple) and not text.startswith("(") else text)
            edits += (source.replace_lines(one.statement.lineno, one.statement.end_lineno or 0, ""),)
            continue
        free = _free("gradients", taken)
        taken.add(free)
        results.append(free)
        edits += (source.replace(one.call, free),)
    return results, edits


def _free(name: str, taken: set[str]) -> str:
    """A name that is not taken: `name` itself, or with a number."""
    return name if name not in taken else next(f"{name}_{n}" for n in itertools.count(2) if f"{name}_{n}" not in taken)


def _head_end(source: Source, block: ast.With) -> int:
    """The last line of a `with` statement's head, which brackets may spread over several."""
    number = block.items[-1].context_expr.end_lineno or block.lineno
    # Comments and brackets may follow the expression; only a line that ends the head ends with a colon.
    while not source.line(number).partition("#")[0].rstrip().endswith(":"):
        number += 1
    return number


def _text(
    source: Source,
    block: ast.With,
    gradients: Sequence[_Gradient],
    results: Sequence[str],
    aux: Sequence[str],
    function: str,
) -> str:
    indent = " " * block.col_offset
    inner = " " * block.body[0].col_offset
    body = source.lines(_head_end(source, block) + 1, block.end_lineno or 0)
    # The block may be the end of a file that lacks its last newline.
    body = body if body.endswith("\n") else body + "\n"
    losses = list(dict.fromkeys(one.loss for one in gradients))
    # Of the same loss with respect to several nests: one pass gives them all.
    same = [[number for number, one in enumerate(gradients) if one.loss == loss] for loss in losses]
    variables = [_tuple([source.of(gradients[number].variables) for number in one]) for one in same]
    targets = [_tuple([results[number] for number in one]) for one in same]
    function_of, shown = "jd.value_and_grad", losses
    if len(losses) > 1 or _is_gradient(block, losses[0]):
        function_of, shown = "jd.value_and_grads", [_tuple(losses, always=True)]
        variables, targets = [_tuple(variables, always=True)], [_tuple(targets, always=True)]
    others = _tuple(aux, always=True)
    returned = f"{shown[0]}, {others}" if aux else shown[0]
    given = f"({shown[0]}, {others})" if aux else shown[0]
    call = f"{function_of}({function}, {variables[0]}{', has_aux=True' if aux else ''})()"
    return f"{indent}def {function}():\n{body}{inner}return {returned}\n{indent}{given}, {targets[0]} = {call}\n"


def _tuple(parts: Sequence[str], *, always: bool = False) -> str:
    """The text of a tuple; of one part alone that part, unless it is to be one always."""
    if len(parts) == 1 and not always:
        return parts[0]
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _is_gradient(block: ast.With, loss: str) -> bool:
    """True if a loss is itself a gradient, of a tape within the block: its elements are added up."""
    for one in nodes(block, ast.Assign):
        asked = one.value.func if isinstance(one.value, ast.Call) else None
        if isinstance(asked, ast.Attribute) and asked.attr == "gradient" and ast.unparse(one.targets[0]) == loss:
            return True
    return False


def _used_elsewhere(block: ast.With, scope: Scope, gradients: Sequence[_Gradient]) -> set[str]:
    # The loss in `tape.gradient(loss, ...)` is no reason to hand it out: that call goes away.
    inside = {*ast.walk(block), *(one.call.args[0] for one in gradients)}
    found: set[str] = set()
    for name in nodes(scope, ast.Name):
        if isinstance(name.ctx, ast.Load) and name not in inside:
            found.add(name.id)
    return found


def _names(statements: Sequence[ast.stmt]) -> Iterator[ast.Name]:
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
