"""The functions of a program by their names, which of them `tf.function` compiles, and where each is called."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeAlias

from jaxtribute._src.addons.compat.migrate.findings import keyword, nodes
from jaxtribute._src.addons.compat.migrate.naming import Names

Function: TypeAlias = ast.FunctionDef
Place: TypeAlias = ast.FunctionDef | ast.Module
_LOOPS = ("tf.map_fn", "tf.while_loop", "tf.scan", "tf.foldl", "tf.foldr", "tf.vectorized_map")


class Functions:
    """The functions of a program.

    Attributes:
      tree: the program.
      places: the functions and the program itself.
    """

    def __init__(self, tree: ast.Module, names: Names) -> None:
        self.tree, self._names = tree, names
        self._around: dict[ast.AST, Place] = {}
        self._class: dict[ast.AST, ast.ClassDef | None] = {}
        self._by_name: dict[str, list[Function]] = {}
        self._own: dict[Place, list[ast.AST]] = {tree: []}
        self._visit(tree, tree, None)
        self.places: list[Place] = [*self._own]
        self._classes = {one.name: one for one in nodes(tree, ast.ClassDef)}
        self._objects = {
            ast.unparse(node.targets[0]): node.value.func.id
            for node in nodes(tree, ast.Assign)
            if isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
            and node.value.func.id in self._classes
        }

    def own(self, place: Place) -> list[ast.AST]:
        """The nodes of a function, without those of functions in it."""
        return self._own[place]

    def around(self, function: Function) -> Place:
        """The function in which another one is defined, or the program."""
        return self._around[function]

    def class_of(self, place: Place) -> ast.ClassDef | None:
        """The class to whose methods a function belongs, if any."""
        return None if isinstance(place, ast.Module) else self._class[place]

    def compiled(self) -> dict[Function, ast.Call | None]:
        """The functions that `tf.function` compiles, each with the call that says how, if there is one."""
        found: dict[Function, ast.Call | None] = {}
        for place in self.places:
            for decorator in () if isinstance(place, ast.Module) else place.decorator_list:
                # With arguments, as in `@tf.function(jit_compile=True)`, it is a call.
                call = decorator if isinstance(decorator, ast.Call) else None
                if self._names.of(decorator if call is None else call.func) == "tf.function":
                    assert isinstance(place, ast.FunctionDef)
                    found[place] = call
            for node in self.own(place):
                if self._names.called_by(node) == "tf.function" and isinstance(node, ast.Call) and node.args:
                    function = self.called(node.args[0], place)
                    if function is not None:
                        found.setdefault(function, node)
        return found

    def called(self, target: ast.expr, place: Place) -> Function | None:
        """The function of this program that an expression in a place names; None for any other."""
        if isinstance(target, ast.Name):
            known = self._by_name.get(target.id, [])
            free = [one for one in known if self._class[one] is None or self._around[one] is not self.tree]
            made = self._classes.get(self._objects.get(target.id, ""))
            return self._nearest(free, place) if free else self._method(made, ("call", "__call__"))
        if not isinstance(target, ast.Attribute):
            return None
        of = self.class_of(place) if ast.unparse(target.value) == "self" else None
        of = of or self._classes.get(self._objects.get(ast.unparse(target.value), ""))
        made = self._classes.get(self._objects.get(ast.unparse(target), ""))
        return self._method(of, (target.attr,)) or self._method(made, ("call", "__call__"))

    def calls(self, place: Place) -> Iterator[tuple[Function, dict[str, ast.expr | None]]]:
        """The calls in a place, also those by way of `strategy.run`: which function, and what its arguments are given.

        A None among them is an element of what a loop of TensorFlow's runs over.
        """
        for node in self.own(place):
            if not isinstance(node, ast.Call):
                continue
            function = self.called(node.func, place)
            if function is not None:
                yield function, _bound(function, node.args, node.keywords)
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            name = self._names.called_by(node)
            # Of a coordinator, `schedule(step, args=...)` has the same form.
            if method in ("run", "schedule", "experimental_run_v2", "merge_call"):
                first = node.args[0] if node.args else keyword(node, "fn")
                function = None if first is None else self.called(first, place)
                args = node.args[1] if len(node.args) > 1 else keyword(node, "args")
                given = args.elts if isinstance(args, (ast.Tuple, ast.List)) else []
                kwargs = keyword(node, "kwargs")
                words = kwargs.keywords if isinstance(kwargs, ast.Call) else []
                if function is not None:
                    yield function, _bound(function, given, words)
            elif name in _LOOPS:
                for part in node.args:
                    function = self.called(part, place)
                    if function is not None:
                        yield function, dict.fromkeys(argument.arg for argument in function.args.args)
            elif name.startswith("tf."):
                # The branches of a `tf.cond`, and other functions that are passed.
                for part in [*node.args, *(one.value for one in node.keywords)]:
                    function = self.called(part, place) if isinstance(part, (ast.Name, ast.Attribute)) else None
                    if function is not None:
                        yield function, {}

    def _method(self, of: ast.ClassDef | None, methods: tuple[str, ...]) -> Function | None:
        # Two classes of one text may each name the other as a base.
        seen = set[ast.ClassDef]()
        while of is not None and of not in seen:
            seen.add(of)
            for one in of.body:
                if isinstance(one, ast.FunctionDef) and one.name in methods:
                    return one
            of = next((self._classes[name] for name in map(ast.unparse, of.bases) if name in self._classes), None)
        return None

    def _nearest(self, known: list[Function], place: Place) -> Function | None:
        """The function of that name which a place sees: one that is defined in it, or around it."""
        while True:
            for one in known:
                if self._around[one] is place:
                    return one
            if isinstance(place, ast.Module):
                return None
            place = self._around[place]

    def _visit(self, node: ast.AST, place: Place, of: ast.ClassDef | None) -> None:
        if not isinstance(node, ast.FunctionDef):
            self._own[place].append(node)
            for child in ast.iter_child_nodes(node):
                self._visit(child, place, node if isinstance(node, ast.ClassDef) else of)
            return
        self._around[node], self._class[node] = place, of
        self._by_name.setdefault(node.name, []).append(node)
        self._own[node] = []
        # Decorators and defaults belong to what is around.
        for outside in (*node.decorator_list, *node.args.defaults):
            self._visit(outside, place, of)
        for statement in node.body:
            self._visit(statement, node, of)


def _bound(function: Function, given: list[ast.expr], words: list[ast.keyword]) -> dict[str, ast.expr | None]:
    """Arguments of a function by their names."""
    parameters = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    parameters = parameters[1:] if parameters[:1] == ["self"] else parameters
    bound: dict[str, ast.expr | None] = {}
    for name, value in zip(parameters, given, strict=False):
        if isinstance(value, ast.Starred):
            break
        bound[name] = value
    return bound | {one.arg: one.value for one in words if one.arg}
