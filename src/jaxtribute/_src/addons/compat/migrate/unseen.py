"""Uses of TensorFlow that stand in texts: modules that are imported by name, code in strings, names of devices."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from jaxtribute._src.addons.compat.catalog.lookup import Kind, entry_of
from jaxtribute._src.addons.compat.migrate.findings import Finding, nodes
from jaxtribute._src.addons.compat.migrate.naming import Names

_IMPORTS = ("import_module", "__import__", "find_spec", "importorskip", "LazyLoader", "try_import")
_CODE = re.compile(r"\b(?:import|from)\s+(?:tensorflow|keras)\b")
# `/gpu:0`, `GPU:*`, `/job:worker/replica:0/task:0/device:TPU:1`.
_DEVICE = re.compile(r"(?:/job:\S*)?/?(?:device:)?(?P<kind>gpu|tpu):(?:\d+|\*)", re.IGNORECASE)


def find(tree: ast.Module, names: Names) -> Iterator[Finding]:
    """Texts that name TensorFlow or its devices."""
    texts = {id(node.value) for node in nodes(tree, ast.Expr)}
    for call in nodes(tree, ast.Call):
        yield from _imported(call)
        yield from _looked_up(call, names)
    for node in nodes(tree, ast.Constant):
        # A text that stands alone describes; everything else may be run.
        if not isinstance(node.value, str) or id(node) in texts:
            continue
        place = (node.lineno, node.col_offset + 1)
        if _CODE.search(node.value):
            yield Finding(
                *place, "code in a text", Kind.DIFFERENT, "it is not read, and imports TensorFlow: look at it"
            )
        elif device := _DEVICE.fullmatch(node.value):
            kind = device["kind"].upper()
            advice = (
                "there is no soft placement: without such a device it is an error. Leave devices to the strategy, or "
                f'let others stand for it, jd.config.alias_devices({{"{kind}:0": "CPU:0"}})'
            )
            yield Finding(*place, node.value, Kind.DIFFERENT, advice)


def _imported(call: ast.Call) -> Iterator[Finding]:
    """Modules of TensorFlow that are imported by their names: `importlib.import_module("tensorflow")`."""
    if ast.unparse(call.func).rpartition(".")[2] not in _IMPORTS:
        return
    for given in (*call.args, *(keyword.value for keyword in call.keywords)):
        if isinstance(given, ast.Constant) and str(given.value).partition(".")[0] in ("tensorflow", "keras"):
            advice = (
                f"what comes of it is not followed: write import jaxtribute.compat.tf, and look at it ({given.value})"
            )
            yield Finding(call.lineno, call.col_offset + 1, "import by name", Kind.DIFFERENT, advice)


def _looked_up(call: ast.Call, names: Names) -> Iterator[Finding]:
    """Names of TensorFlow that are looked up: `getattr(tf.keras.optimizers, name)`."""
    base, name = _asked(call, names)
    if name is None:
        return
    place = (call.lineno, call.col_offset + 1)
    if not isinstance(name, ast.Constant):
        yield Finding(*place, f"{base}.(...)", Kind.DIFFERENT, "which name it is cannot be read: look at it")
        return
    entry = entry_of(f"{base}.{name.value}")
    # Asked with another way out the program goes on without the name.
    asks = ast.unparse(call.func) == "hasattr" or len(call.args) > 2
    if entry.kind is not Kind.SAME and not (asks and entry.kind is Kind.ABSENT):
        yield Finding(*place, entry.name, entry.kind, entry.note or entry.unknown)


def _asked(call: ast.Call, names: Names) -> tuple[str, ast.expr | None]:
    """The part of TensorFlow in which a call looks a name up, and the name; None if it does not."""
    if not isinstance(call.func, ast.Name) or call.func.id not in ("getattr", "hasattr") or len(call.args) < 2:
        return "", None
    base = names.of(call.args[0]) or ""
    return base, call.args[1] if base.partition(".")[0] == "tf" else None


def guarded(tree: ast.Module, names: Names) -> set[ast.AST]:
    """Uses of names that the program asks for before, as in `tf.f(x) if hasattr(tf, "f") else x`, and are not here."""
    found = set[ast.AST]()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.If, ast.IfExp, ast.BoolOp)):
            continue
        if isinstance(node, ast.BoolOp):
            test, parts = node.values[0], node.values[1:]
            found |= _unreached(test, parts if isinstance(node.op, ast.And) else [], names)
            found |= _unreached(test, parts if isinstance(node.op, ast.Or) else [], names, denied=True)
            continue
        body, orelse = ((one if isinstance(one, list) else [one]) for one in (node.body, node.orelse))
        found |= _unreached(node.test, body, names) | _unreached(node.test, orelse, names, denied=True)
    return found


def _unreached(test: ast.expr, parts: Iterable[ast.AST], names: Names, denied: bool = False) -> set[ast.AST]:
    """Names in code that is run if a test is true, or if `denied` false, where it never is for a name is not here."""
    if denied and isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _unreached(test.operand, parts, names)
    tests = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) and not denied else [test]
    for one in tests:
        base, name = _asked(one, names) if isinstance(one, ast.Call) and not denied else ("", None)
        if isinstance(name, ast.Constant) and entry_of(f"{base}.{name.value}").kind is Kind.ABSENT:
            return {node for part in parts for node in ast.walk(part)}
    return set()
