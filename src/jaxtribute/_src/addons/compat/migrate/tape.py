"""`tf.GradientTape` into `jd.value_and_grad`: the lines of the `with` block become a function."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from jaxtribute._src.addons.compat.migrate.between import apart, movable, written
from jaxtribute._src.addons.compat.migrate.blocks import loaded, problem, read_before_stored, stored
from jaxtribute._src.addons.compat.migrate.connected import all_connected
from jaxtribute._src.addons.compat.migrate.findings import Edit, Source, assigned, keyword, nodes
from jaxtribute._src.addons.compat.migrate.naming import Names
from jaxtribute._src.addons.compat.migrate.scalars import is_scalar
from jaxtribute._src.addons.compat.migrate.tape_uses import IN_A_LOOP, ByArrayError, Scope, absent_use, other_use

_LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_VARIABLES = ("trainable_variables", "trainable_weights", "variables", "weights")


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Plan for a tape.

    Attributes:
      problem: why it has to be done by hand; empty if it has not.
      text: the lines that take its place.
      edits: the change.
      by_array: whether the problem is with a gradient by an array, which is `jax.grad`'s.
    """

    problem: str = ""
    text: str = ""
    edits: tuple[Edit, ...] = ()
    by_array: bool = False


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
    """A call `tape.gradient(loss, variables)`, or `optimizer.minimize(loss, variables, tape=tape)`.

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
    block = tapes.block
    names = [item.optional_vars.id for item in block.items if isinstance(item.optional_vars, ast.Name)]
    if len(names) < len(block.items):
        return Rewrite("the tape has no name")
    joined = apart(source, block, tapes.among, _uses(tapes, names))
    if joined:
        return _again(source, tapes, joined, function)
    inside = _asked_inside(tapes, names)
    if inside:
        return _moved_out(source, tapes, inside, function)
    try:
        gradients = _gradients(source, tapes, names)
        arrays = _arrays(source, tapes, names, gradients)
        before = _read_before(tapes)
        late, early = _order(source, tapes, gradients)
    except ValueError as reason:
        return Rewrite(str(reason), by_array=isinstance(reason, ByArrayError))
    # What is assigned in the block and read after it, or in its next turn: a function has to hand that out.
    shown = (_used_elsewhere(tapes, gradients) & stored(block.body)) | set(before)
    results, edits = _results(source, gradients, {name.id for name in nodes(tapes.scope, ast.Name)})
    parameters = ", ".join([*arrays, *(f"{name}={name}" for name in before)])
    indent, deeper = source.before(block), source.before(block.body[0])
    head = f"{indent}def {function}({parameters}):\n{_body(source, tapes, names)}"
    if arrays:
        returned, called = _array_call(gradients[0], results[0], shown, function)
    else:
        returned, called = _variables_call(source, tapes, gradients, results, shown, function)
    first = "".join(source.lines(one.lineno, one.end_lineno or 0) for one in early)
    text = f"{first}{head}{deeper}return {returned}\n{indent}{called}\n"
    place = source.place(gradients[0].statement.lineno, 0)
    edits += (
        source.replace_lines(block.lineno, block.end_lineno or 0, "" if late else text),
        *([Edit(place, place, text)] if late else []),
    )
    for statement in (*early, *_deleted(tapes.scope, _uses(tapes, names))):
        # Behind another one, or a head, on its line, something has to stay.
        alone = source.line(statement.lineno).partition("#")[0].strip() == source.of(statement) or statement in early
        lines = source.replace_lines(statement.lineno, statement.end_lineno or 0, "")
        edits += (lines if alone else source.replace(statement, "pass"),)
    return Rewrite("", text, edits)


def _asked_inside(tapes: Tapes, names: Sequence[str]) -> list[ast.stmt]:
    """The last lines of a block, from the first that asks a tape for a gradient: the tape need not see them."""
    uses, body = _uses(tapes, names), tapes.block.body
    for number, statement in enumerate(body):
        if any(_asked_of(call) in uses for call in nodes(statement, ast.Call)):
            return body[number:] if number else []
    return []


def _moved_out(source: Source, tapes: Tapes, inside: Sequence[ast.stmt], function: str) -> Rewrite:
    """Moves the last lines of a block behind it, from where the next turn rewrites it as any other."""
    block = tapes.block
    deeper = block.body[0].col_offset - block.col_offset
    edits: list[Edit] = []
    for number in range(inside[0].lineno, (block.end_lineno or 0) + 1):
        line = source.line(number)
        blank = min(deeper, len(line) - len(line.lstrip()))
        edits.append(Edit(source.place(number, 0), source.place(number, blank), ""))
    moved = Source(source.apply(edits))
    for other in find_tapes(moved.tree, Names(moved.tree)).values():
        if other.block.lineno == block.lineno:
            place = other.among.index(other.block) + 1
            after = other.among[place : place + len(inside)]
            if list(map(ast.dump, after)) != list(map(ast.dump, inside)):
                return Rewrite(
                    "the lines from the gradient on hold a text of several lines: move them out of the block"
                )
            return _again(source, tapes, edits, function)
    return Rewrite("the gradient is asked for in the block: move it out")


def _again(source: Source, tapes: Tapes, edits: Sequence[Edit], function: str) -> Rewrite:
    """The plan for a block once edits behind its first line are made: the next turn does what is left."""
    changed = Source(source.apply(edits))
    blocks = find_tapes(changed.tree, Names(changed.tree)).values()
    planned = rewrite(changed, next(one for one in blocks if one.block.lineno == tapes.block.lineno), function)
    return planned if planned.problem else Rewrite("", planned.text, tuple(edits))


def _order(source: Source, tapes: Tapes, gradients: Sequence[_Gradient]) -> tuple[bool, list[ast.stmt]]:
    """True if the gradient has to be taken where it is asked for; and the lines behind the block that go before it.

    Raises:
      ValueError: what the gradient needs is made behind the block, and cannot be had before.
    """
    late, early, block = False, dict[ast.stmt, None](), tapes.block
    bound, after = stored(block.body), tapes.among[tapes.among.index(block) + 1 :]
    for one in gradients:
        between = after[: after.index(one.statement)]
        targets = stored([] if one.target is None else [ast.Assign([one.target], one.call)])
        needed = loaded([ast.Expr(one.variables)]) | targets
        # The gradient is taken where the block was: what it needs must be the same there.
        changed = (written(between) | bound) & needed
        if not changed and not loaded(between) & targets:
            continue
        # Names that have nothing to do with the block may as well be assigned before it.
        free = not (loaded(between) | needed) & bound and not stored(between) & loaded(block.body)
        if free and len(gradients) == 1 and all(isinstance(line, ast.Assign) for line in between):
            late = True
        elif loaded(between) & targets or needed & bound:
            name = sorted((loaded(between) & targets) | (needed & bound))[0]
            raise ValueError(f"`{name}` changes between the block and the gradient")
        else:
            early.update(dict.fromkeys(movable(source, block, between, needed)))
    return late, sorted(early, key=attrgetter("lineno"))


def _read_before(tapes: Tapes) -> list[str]:
    """The names that the block reads before it assigns them: the function is given what they were.

    Raises:
      ValueError: such a name is not assigned before the block.
    """
    early = sorted(read_before_stored(tapes.block.body))
    before = {name.id for name in nodes(tapes.scope, ast.Name) if name.lineno < tapes.block.lineno and _binds(name)}
    if not isinstance(tapes.scope, ast.Module):
        before |= {argument.arg for argument in nodes(tapes.scope.args, ast.arg)}
    for name in early:
        if name not in before:
            raise ValueError(f"`{name}` is read in the block before it is assigned there")
    return early


def _binds(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


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


def _asked_of(call: ast.Call) -> ast.expr | None:
    """The tape that a call asks for a gradient, if it is such a call."""
    if not isinstance(call.func, ast.Attribute):
        return None
    return {"gradient": call.func.value, "minimize": keyword(call, "tape")}.get(call.func.attr)


def _gradients(source: Source, tapes: Tapes, names: Sequence[str]) -> list[_Gradient]:
    """Finds what is asked of tapes.

    Raises:
      ValueError: something that no function gives; the reason why.
    """
    block, uses = tapes.block, _uses(tapes, names)
    found: list[_Gradient] = []
    for statement in tapes.among[tapes.among.index(block) + 1 :]:
        # What a loop or a function holds may run more than once, or never.
        repeated, turns = set[ast.AST](), set[ast.AST]()
        for part in ast.walk(statement):
            if isinstance(part, (ast.FunctionDef, ast.Lambda)):
                repeated.update(ast.walk(part))
            elif isinstance(part, _LOOPS):
                # What a statement goes through is made once, before its first turn.
                once = set(ast.walk(part.iter)) if part is statement and isinstance(part, ast.For) else set[ast.AST]()
                turns.update(set(ast.walk(part)) - once)
        for call in sorted(nodes(statement, ast.Call), key=attrgetter("lineno", "col_offset")):
            if call in turns - repeated and _asked_of(call) in uses:
                raise ValueError(f"`{source.of(call)}` is asked {IN_A_LOOP}")
            found += [_gradient(source, call, statement)] if call not in repeated and _asked_of(call) in uses else []
    if not found:
        raise ValueError(
            absent_use(tapes.scope, uses)
            or f"there is no `grads = {names[0]}.gradient(loss, variables)` after the block"
        )
    # Any other use does something that the function would not.
    known = [one for one in nodes(block, ast.Name) if any(one in ast.walk(call) for call in _watches(tapes, uses))]
    rest = uses.difference(
        *(one.targets for one in _deleted(tapes.scope, uses)), known, (_asked_of(one.call) for one in found)
    )
    for name in sorted(rest, key=attrgetter("lineno", "col_offset")):
        raise ValueError(other_use(tapes.scope, name))
    missing = {one.loss for one in found} - stored(block.body)
    reason = problem(block) or (f"`{sorted(missing)[0]}` is not assigned in the block" if missing else "")
    if reason:
        raise ValueError(reason)
    return found


def _gradient(source: Source, call: ast.Call, statement: ast.stmt) -> _Gradient:
    """Reads what a call asks of a tape.

    Raises:
      ValueError: it asks for more than a gradient of a name.
    """
    given = dict(zip(("target", "sources"), call.args, strict=False))
    given |= {one.arg or "**": one.value for one in call.keywords}
    for other, name in (("loss", "target"), ("var_list", "sources")):
        given.update({name: given.pop(other)} if other in given else {})
    if len(call.args) > 2 or given.keys() - {"unconnected_gradients", "tape"} != {"target", "sources"}:
        raise ValueError(f"`{source.of(call)}` asks for more than a gradient")
    if not isinstance(given["target"], ast.Name):
        raise ValueError(f"`{source.of(given['target'])}` is computed outside the block: give it a name inside")
    return _Gradient(call, statement, given["target"].id, given["sources"])


def _watches(tapes: Tapes, uses: set[ast.Name]) -> list[ast.Expr]:
    """Statements `tape.watch(x)` among the lines of the block, of names or of a model's variables."""
    found: list[ast.Expr] = []
    for statement in itertools.chain.from_iterable(block.body for block in nodes(tapes.block, ast.With)):
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not isinstance(statement, ast.Expr) or not isinstance(call, ast.Call) or len(call.args) != 1:
            continue
        what = call.args[0]
        known = (isinstance(what, ast.Attribute) and what.attr in _VARIABLES) or bool(_listed(what))
        asks = isinstance(call.func, ast.Attribute) and call.func.attr == "watch" and call.func.value in uses
        if asks and known:
            found.append(statement)
    return found


def _listed(node: ast.expr) -> list[str]:
    """The name that an expression is, or the names in a list of nothing else."""
    parts = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
    listed = [part.id for part in parts if isinstance(part, ast.Name)]
    return listed if len(listed) == len(parts) else []


def _arrays(source: Source, tapes: Tapes, names: Sequence[str], gradients: Sequence[_Gradient]) -> list[str]:
    """The arrays, not variables, by which the gradient is asked for; empty if it is by variables.

    Raises:
      ValueError: it is by both, or there are several gradients.
    """
    uses, values = _uses(tapes, names), assigned(source.tree)
    watched: dict[str, ast.Name] = {}
    for statement in _watches(tapes, uses):
        for name in nodes(statement, ast.Name):
            value = values.get(name.id)
            made = value.func if isinstance(value, ast.Call) else None
            if name not in uses and not (isinstance(made, ast.Attribute) and made.attr == "Variable"):
                watched[name.id] = next(tape for tape in nodes(statement, ast.Name) if tape in uses)
    asked = [name.id for one in gradients for name in nodes(one.variables, ast.Name)]
    arrays = [name for name in asked if name in watched]
    trains = any(getattr(one.value, "value", False) for one in nodes(tapes.block, ast.keyword) if one.arg == "training")
    if arrays and trains:
        raise ByArrayError(
            "dropout and statistics cannot change within `jax.grad`: pass training=False to its layers, and run "
            "`jaxtribute migrate --write` once more, which does the rest"
        )
    if arrays and (len(gradients) > 1 or arrays != _listed(gradients[0].variables)):
        raise ValueError(other_use(tapes.scope, watched[arrays[0]]))
    return arrays


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
        minimized = isinstance(one.call.func, ast.Attribute) and one.call.func.attr == "minimize"
        text = f"zip({free}, {source.of(one.variables)})"
        optimizer = source.of(one.call.func).removesuffix(".minimize")
        edits += (source.replace(one.call, f"{optimizer}.apply_gradients({text})" if minimized else free),)
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


def _body(source: Source, tapes: Tapes, names: Sequence[str]) -> str:
    """The lines of the block but those that only tell the tape what to watch."""
    block, left_out = tapes.block, set[int]()
    for statement in _watches(tapes, _uses(tapes, names)):
        left_out.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    numbers = range(_head_end(source, block) + 1, (block.end_lineno or 0) + 1)
    body = "".join(source.line(number) for number in numbers if number not in left_out)
    # The block may be the end of a file that lacks its last newline.
    return body if body.endswith("\n") else body + "\n"


def _array_call(one: _Gradient, result: str, shown: set[str], function: str) -> tuple[str, str]:
    """Writes the results of the function and its call, for a gradient by arrays."""
    arrays = _listed(one.variables)
    numbers = _tuple([*map(str, range(len(arrays)))], always=True)
    options = "" if isinstance(one.variables, ast.Name) else f", argnums={numbers}"
    # A tape adds up the elements of what it differentiates.
    returned, targets = f"jnp.sum({one.loss})", result
    if shown:
        others = _tuple(sorted(shown), always=True)
        returned, targets, options = f"{returned}, {others}", f"{result}, {others}", f"{options}, has_aux=True"
    return returned, f"{targets} = jax.grad({function}{options})({', '.join(arrays)})"


def _variables_call(
    source: Source, tapes: Tapes, gradients: Sequence[_Gradient], results: Sequence[str], shown: set[str], function: str
) -> tuple[str, str]:
    """Writes the results of the function and its call, for gradients by variables."""
    losses = list(dict.fromkeys(one.loss for one in gradients))
    aux = sorted(shown.difference(losses))
    # Of the same loss with respect to several nests: one pass gives them all.
    same = [[number for number, one in enumerate(gradients) if one.loss == loss] for loss in losses]
    variables = [_tuple([source.of(gradients[number].variables) for number in one]) for one in same]
    targets = [_tuple([results[number] for number in one]) for one in same]
    function_of, given = "jd.value_and_grad", losses
    as_tape = _may_be_none(source, tapes, gradients)
    # Both ways add up the elements of a loss that is not a scalar.
    scalar = as_tape or is_scalar(source.tree, tapes.block, tapes.scope, losses[0])
    if len(losses) > 1 or not scalar or _is_gradient(tapes.block, losses[0]):
        function_of, given = "jd.value_and_grads", [_tuple(losses, always=True)]
        variables, targets = [_tuple(variables, always=True)], [_tuple(targets, always=True)]
    others = _tuple(aux, always=True)
    options = ", has_aux=True" if aux else ""
    options += ', unconnected_gradients="none"' if as_tape else ""
    call = f"{function_of}({function}, {variables[0]}{options})()"
    if not aux:
        return given[0], f"{given[0]}, {targets[0]} = {call}"
    return f"{given[0]}, {others}", f"({given[0]}, {others}), {targets[0]} = {call}"


def _may_be_none(source: Source, tapes: Tapes, gradients: Sequence[_Gradient]) -> bool:
    """True if a gradient that the program asks for may be None, and it has not asked for zeros in its place."""
    zeros = ("zero", "tf.UnconnectedGradients.ZERO")
    asked = [keyword(one.call, "unconnected_gradients") for one in gradients]
    if all(value is not None and source.of(value).strip("\"'") in zeros for value in asked):
        return False
    # What this tape is told to watch has a gradient, trainable or not.
    own = {f"{ast.unparse(item.optional_vars)}.watch" for item in tapes.block.items if item.optional_vars is not None}
    watches = any(ast.unparse(one.func) in own for one in nodes(tapes.block, ast.Call))
    return not watches and not all_connected(source, tapes.block, [one.variables for one in gradients])


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


def _used_elsewhere(tapes: Tapes, gradients: Sequence[_Gradient]) -> set[str]:
    # The loss in `tape.gradient(loss, ...)` is no reason to hand it out: that call goes away.
    inside = {*ast.walk(tapes.block), *itertools.chain.from_iterable(ast.walk(one.call) for one in gradients)}
    found: set[str] = set()
    for name in nodes(tapes.scope, ast.Name):
        if isinstance(name.ctx, ast.Load) and name not in inside:
            found.add(name.id)
    return found
