"""Training steps of Keras 2: `compiled_loss` and `compiled_metrics`, which Keras 3 does not have."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from jaxtribute._src.addons.compat.catalog.lookup import Kind
from jaxtribute._src.addons.compat.migrate.findings import Edit, Finding, Source, nodes

_LOSS, _METRICS = "compiled_loss", "compiled_metrics"
_ARGUMENTS = ("y", "y_pred", "sample_weight", "regularization_losses")
"""Arguments of `compiled_loss` in their places, by the names that `compute_loss` has for them."""
_RENAMED = {"y_true": "y"}
_NEW = "loss"
"""The name of a loss that the program computes only for its metric."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Change = tuple[str, tuple[Edit, ...]]


def find(source: Source) -> Iterator[Finding]:
    """Compiled losses and metrics, with edits where the new step surely computes the same."""
    own = methods(source.tree)
    functions = {id(node): function for function in _functions(source.tree) for node in _within(function)}
    calls = {id(call.func): call for call in nodes(source.tree, ast.Call)}
    statements = {id(line.value): line for line in nodes(source.tree, ast.Expr)}
    update = {id(node.value): node for node in nodes(source.tree, ast.Attribute) if node.attr == "update_state"}
    for node in nodes(source.tree, ast.Attribute):
        if not isinstance(node.ctx, ast.Load):
            continue
        function = functions.get(id(node))
        if node.attr == _LOSS:
            advice, edits = _loss(source, calls.get(id(node)), function, own)
        elif node.attr == _METRICS:
            call = calls.get(id(update.get(id(node))))
            advice, edits = _metrics(source, statements.get(id(call)), function, own)
        else:
            continue
        end = node.end_col_offset or 0
        place = (node.end_lineno or 0, end - len(node.attr), f".{node.attr}")
        yield Finding(*place, Kind.RENAMED if edits else Kind.ABSENT, advice, edits)


def methods(tree: ast.Module) -> set[str]:
    """The names of all methods that a program defines."""
    names: set[str] = set()
    for owner in nodes(tree, ast.ClassDef):
        names |= {line.name for line in owner.body if isinstance(line, _Function)}
    return names


def _loss(source: Source, call: ast.Call | None, function: _Function | None, own: set[str]) -> _Change:
    """The advice on `self.compiled_loss(y, p, regularization_losses=self.losses)`, and its edit."""
    given = _arguments(call)
    if call is None or given is None:
        return "write self.compute_loss(y=..., y_pred=...), which always adds the model's own losses", ()
    values = _listed(source, given)
    text = f"self.compute_loss({values})"
    if "compute_loss" in own:
        # Within that method itself, such a call would never end.
        return f"this file has a method compute_loss: write super().compute_loss({values}) in it, {text} elsewhere", ()
    if not _adds_losses(given):
        advice = f"Keras 3's compute_loss always adds the model's own losses: write {text}, and drop what adds them"
        return f"{advice} here, such as + sum(self.losses); if nothing does, write {text} - sum(self.losses)", ()
    if not _is_of_self(call.func, _LOSS):
        return f"write {text} of the model", ()
    if function is not None and call in _dropped(function):
        text = f"{_NEW} = {text}"
    return f"write {text}", (source.replace(call, text),)


def _metrics(source: Source, line: ast.Expr | None, function: _Function | None, own: set[str]) -> _Change:
    """The advice on `self.compiled_metrics.update_state(y, p)`, and its edit."""
    call = line.value if line is not None else None
    given = _arguments(call) if isinstance(call, ast.Call) else None
    if line is None or given is None or function is None:
        return "write self.compute_metrics(x, y, y_pred), and update the metric named loss with the loss", ()
    # This updates the metrics of `compile` alone. `self.metrics` also has a mean for each output of several, which
    # `compute_loss` updates, and those that the model has made itself.
    text = f"self.compute_metrics(x=None, {_listed(source, given)})"
    again = own & {"compute_metrics", "metrics"}
    if again:
        advice = f"this file has a method {min(again)}: write {text}, or super().compute_metrics(...) in such a method"
        return f"{advice}, and update the model's metric named loss with the loss", ()
    loss = _loss_name(function, line, rewritten="compute_loss" not in own)
    if not loss:
        advice = (
            f"write {text}, and update the metric of self.metrics that is named loss with the value of compute_loss"
        )
        return f"{advice}: {function.name} has no name that surely holds it", ()
    indent = " " * line.col_offset
    text = (
        f'for metric in self.metrics:\n{indent}    if metric.name == "loss":\n'
        f"{indent}        metric.update_state({loss})\n{indent}        break\n{indent}{text}"
    )
    return f"write {text}", (source.replace(line, text),)


def _arguments(call: ast.expr | None) -> dict[str, ast.expr] | None:
    """Finds the values in a call, by the names of Keras 3's arguments; None if the text does not tell them all."""
    if not isinstance(call, ast.Call) or any(isinstance(value, ast.Starred) for value in call.args):
        return None
    given: dict[str, ast.expr] = dict(zip(_ARGUMENTS, call.args, strict=False))
    for word in call.keywords:
        name = _RENAMED.get(word.arg or "", word.arg or "")
        if name not in _ARGUMENTS or name in given:
            return None
        given[name] = word.value
    return given if {"y", "y_pred"} <= given.keys() and len(call.args) <= len(_ARGUMENTS) else None


def _listed(source: Source, given: dict[str, ast.expr]) -> str:
    return ", ".join(f"{name}={source.of(value)}" for name, value in given.items() if name != _ARGUMENTS[-1])


def _adds_losses(given: dict[str, ast.expr]) -> bool:
    """True if a call of `compiled_loss` is told to add the model's own losses."""
    value = given.get(_ARGUMENTS[-1])
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("list", "tuple"):
        value = value.args[0] if value.args else None
    return value is not None and _is_of_self(value, "losses")


def _loss_name(function: _Function, line: ast.Expr, *, rewritten: bool) -> str:
    """Finds the name that holds the loss at a line of a function, and never anything else; empty if there is none."""
    names: set[str] = set()
    known: set[int] = set()
    for node in nodes(function, ast.Assign):
        target = node.targets[0]
        if _is_loss(node.value) and isinstance(target, ast.Name) and len(node.targets) == 1:
            names.add(target.id)
            known.add(id(target))
        elif isinstance(node.value, ast.Call) and "value_and_grad" in ast.unparse(node.value.func):
            # A tape that is rewritten: a function within this one computes the loss and returns it.
            known |= {id(name) for name in nodes(target, ast.Name)}
    if not names and rewritten and any(call.lineno < line.lineno for call in _dropped(function)):
        return _NEW
    if len(names) != 1:
        return ""
    name = names.pop()
    stored = [node for node in nodes(function, ast.Name) if node.id == name and not isinstance(node.ctx, ast.Load)]
    own = {id(node) for node in _within(function)}
    above = any(id(node) in own and node.lineno < line.lineno for node in stored)
    return name if above and all(id(node) in known for node in stored) else ""


def _dropped(function: _Function) -> list[ast.Call]:
    """The calls of `compiled_loss` that are made only for the mean of losses, if there is a free name for its value."""
    for node in ast.walk(function):
        if (isinstance(node, ast.Name) and node.id == _NEW) or (isinstance(node, ast.arg) and node.arg == _NEW):
            return []
    found: list[ast.Call] = []
    for line in _within(function):
        call = line.value if isinstance(line, ast.Expr) else None
        if isinstance(call, ast.Call) and _is_of_self(call.func, _LOSS) and _adds_losses(_arguments(call) or {}):
            found.append(call)
    return found


def _functions(tree: ast.Module) -> Iterator[_Function]:
    yield from nodes(tree, ast.FunctionDef)
    yield from nodes(tree, ast.AsyncFunctionDef)


def _within(function: _Function) -> Iterator[ast.AST]:
    """The nodes of a function's body, without those of the functions and classes in it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _Function | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def _is_loss(node: ast.expr) -> bool:
    called = node.func if isinstance(node, ast.Call) else node
    return called is not node and (_is_of_self(called, _LOSS) or _is_of_self(called, "compute_loss"))


def _is_of_self(node: ast.expr, attribute: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == attribute
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )
