"""Finds the TensorFlow name of an expression, as far as a program's imports and assignments tell."""

from __future__ import annotations

import ast

from jaxtribute._src.addons.compat.catalog.distribute import MODULES

# This library's modules too, so that a program which is rewritten in part is read like any other.
_ROOTS = {
    "tensorflow": "tf",
    "tensorflow.compat.v2": "tf",
    "keras": "tf.keras",
    "jaxtribute.compat.tf": "tf",
    "jaxtribute.compat.v1": "tf.compat.v1.distribute",
}
_DATASET = "tf.data.Dataset"
# Every other method of a dataset returns a dataset.
_NO_DATASET = {"as_numpy_iterator", "cardinality", "element_spec", "options", "reduce"}
_RESULTS = {
    "get_strategy": "Strategy",
    "get_replica_context": "ReplicaContext",
}
_METHODS = {
    "experimental_distribute_dataset": "DistributedDataset",
    "distribute_datasets_from_function": "DistributedDataset",
    "experimental_distribute_datasets_from_function": "DistributedDataset",
}


def root_of(module: str) -> str | None:
    """TensorFlow's name of an imported module: `tf` for `tensorflow`; None for one that is not TensorFlow's."""
    # The longest counts: `tensorflow.compat.v2` is `tf` itself, and no part of it.
    best = max((root for root in _ROOTS if f"{module}.".startswith(f"{root}.")), key=len, default=None)
    return None if best is None else _ROOTS[best] + module[len(best) :]


class Names:
    """The names that a program gives to parts of TensorFlow."""

    def __init__(self, tree: ast.Module) -> None:
        self._known: dict[str, str] = {}
        self._plain: set[str] = set()
        self._made: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._take_import(node)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self._take_import_from(node, node.module)
        # Twice, for names that are assigned further down than they are used.
        for node in [*ast.walk(tree)] * 2:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                self._take_assignment(node.targets[0], node.value)
            elif isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
                self._take_value(node.optional_vars.id, node.context_expr)

    def of(self, node: ast.AST) -> str | None:
        """TensorFlow's full name of what an expression is, or of the class that it is an object of."""
        if isinstance(node, ast.Name):
            return self._known.get(node.id)
        if isinstance(node, ast.Attribute):
            base = self.of(node.value)
            if base is None:
                return None
            # Every strategy has it, and the catalogue lists what it holds under a name of its own.
            return _extended(base) if node.attr == "extended" and base.endswith("Strategy") else f"{base}.{node.attr}"
        if isinstance(node, ast.Call):
            called = self.of(node.func)
            return None if called is None else _result(called)
        return None

    def called_by(self, node: ast.AST) -> str:
        """TensorFlow's full name of what a node calls; empty if it is no call, or of something else."""
        return (self.of(node.func) or "") if isinstance(node, ast.Call) else ""

    def plain(self, node: ast.AST) -> bool:
        """True if an expression's name begins with the package `keras`, not with `tf.keras`."""
        while isinstance(node, (ast.Attribute, ast.Call)):
            node = node.value if isinstance(node, ast.Attribute) else node.func
        return isinstance(node, ast.Name) and node.id in self._plain

    def made_by(self, node: ast.expr) -> str:
        """TensorFlow's full name of what made the object that an expression is; empty if the text does not tell."""
        if isinstance(node, ast.Call):
            return self.of(node.func) or ""
        return self._made.get(ast.unparse(node), "") if isinstance(node, (ast.Name, ast.Attribute)) else ""

    def _take_import(self, node: ast.Import) -> None:
        for alias in node.names:
            root = root_of(alias.name)
            if root is None:
                continue
            if alias.asname:
                self._take(alias.asname, root, alias.name)
            # `import tensorflow.x` binds only the first part of the name.
            elif alias.name.partition(".")[0] in ("tensorflow", "keras"):
                first = alias.name.partition(".")[0]
                self._take(first, _ROOTS[first], first)

    def _take_import_from(self, node: ast.ImportFrom, module: str) -> None:
        for alias in node.names:
            root = root_of(f"{module}.{alias.name}")
            if root is not None:
                self._take(alias.asname or alias.name, root, module)

    def _take(self, name: str, full: str, module: str) -> None:
        self._known[name] = full
        if module.partition(".")[0] == "keras":
            self._plain.add(name)

    def _take_assignment(self, target: ast.expr, value: ast.expr) -> None:
        made = self.called_by(value)
        if made and isinstance(target, (ast.Name, ast.Attribute)):
            self._made.setdefault(ast.unparse(target), made)
        if isinstance(target, ast.Name):
            self._take_value(target.id, value)

    def _take_value(self, name: str, value: ast.expr) -> None:
        found = self.of(value)
        if found is not None:
            # What is known stays: in which order lines run is not followed, and an import says most.
            self._known.setdefault(name, found)
            if self.plain(value):
                self._plain.add(name)


def _extended(base: str) -> str:
    return base.rpartition(".")[0] + ".StrategyExtended"


def _result(called: str) -> str | None:
    """The class of what a call returns, if it is one that is followed."""
    if called == _DATASET or called.startswith(f"{_DATASET}."):
        return None if called.rpartition(".")[2] in _NO_DATASET else _DATASET
    if called in ("tf.data.TFRecordDataset", "tf.data.TextLineDataset"):
        return _DATASET
    module, _, name = called.rpartition(".")
    if name in _METHODS and module.endswith("Strategy"):
        return f"tf.distribute.{_METHODS[name]}"
    if module not in MODULES:
        return None
    main = "tf.compat.v1.distribute" if module.startswith("tf.compat.v1") else "tf.distribute"
    if name.endswith("Strategy"):
        return f"{main}.Strategy"
    if name in _RESULTS:
        return f"{main}.{_RESULTS[name]}"
    return called if name in MODULES[module].names and name[0].isupper() else None
