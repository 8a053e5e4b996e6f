"""Variables whose gradient a tape may give as None: the loss does not depend on them, or it does not watch them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from jaxtribute._src.addons.compat.migrate.findings import Source, assigned, keyword, nodes

_TRAINABLE = ("trainable_variables", "trainable_weights")
_CALLS = ("call", "__call__")
_DERIVATIVES = frozenset(
    "gradient jacobian batch_jacobian grad value_and_grad value_and_grads jacfwd jacrev hessian jvp vjp".split()
)


def all_connected(source: Source, block: ast.With, variables: Iterable[ast.expr]) -> bool:
    """True if the loss of a block depends on all of these variables, as far as the text shows that.

    It does for the trainable variables of one object, or variables that the block names, where nothing is computed
    under a condition, no result is one of several, and no derivative is taken.

    Args:
      source: the program.
      block: the tape's.
      variables: the expressions that the tape is asked for gradients by.
    """
    known, read = assigned(source.tree), {name.id for name in nodes(block, ast.Name)}
    return not _chooses(source.tree, block) and all(_plain(each, known, read) for each in variables)


def _plain(node: ast.expr, known: Mapping[str, ast.expr], read: set[str]) -> bool:
    if isinstance(node, (ast.List, ast.Tuple)):
        return all(_plain(each, known, read) for each in node.elts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _plain(node.left, known, read) and _plain(node.right, known, read)
    if isinstance(node, ast.Attribute):
        return node.attr in _TRAINABLE
    if not isinstance(node, ast.Name):
        return False
    value = known.get(node.id)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "Variable":
        return node.id in read and keyword(value, "trainable") is None and not _of_integers(value)
    # Another name is followed once: `variables = model.trainable_variables`.
    return value is not None and not isinstance(value, ast.Name) and _plain(value, known, read)


def _of_integers(made: ast.Call) -> bool:
    first = made.args[0] if made.args else None
    return keyword(made, "dtype") is not None or (isinstance(first, ast.Constant) and isinstance(first.value, int))


def _chooses(tree: ast.Module, block: ast.With) -> bool:
    """True if something in a block, or in a function of the program that it calls, may be left out."""
    functions: dict[str, list[ast.AST]] = {}
    for made in nodes(tree, ast.FunctionDef):
        functions.setdefault(made.name, []).append(made)
    seen: list[ast.AST] = []
    left: list[ast.AST] = [block]
    while left:
        part = left.pop()
        if part in seen:
            continue
        seen.append(part)
        if any(isinstance(node, (ast.If, ast.IfExp, ast.Match)) for node in ast.walk(part)) or _takes_apart(part):
            return True
        # Of a derivative drops out what is only added: the last bias of a network whose inputs are moved.
        if any(getattr(call.func, "attr", "") in _DERIVATIVES for call in nodes(part, ast.Call)):
            return True
        for call in nodes(part, ast.Call):
            name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
            # What is called by another name may be an object of any class of the program.
            for called in (name,) if name in functions else _CALLS:
                left += functions.get(called, [])
    return False


def _takes_apart(part: ast.AST) -> bool:
    """True if a part of what a call gives is taken: the others may be of no use to the loss."""
    made: set[str] = set()
    for one in nodes(part, ast.Assign):
        if isinstance(one.value, ast.Call):
            for target in one.targets:
                if isinstance(target, (ast.Tuple, ast.List)):
                    return True
                made.update(name.id for name in nodes(target, ast.Name))
    taken = (one.value for one in nodes(part, ast.Subscript))
    return any(isinstance(one, ast.Call) or (isinstance(one, ast.Name) and one.id in made) for one in taken)
