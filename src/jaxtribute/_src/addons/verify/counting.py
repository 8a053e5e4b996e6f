"""Finds, in the source, the names that hold the number of replicas, as in `N = strategy.num_replicas_in_sync`.

Only the number itself is looked for, also as int(...) or float(...), handed on to a parameter, an attribute or a key.
What is computed of it, such as the usual `GLOBAL_BATCH_SIZE`, is a number of the program's own.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

COUNT = "num_replicas_in_sync"
_SAME = frozenset("int float asarray array constant cast float16 float32 float64 bfloat16 int32 int64".split())
"""Calls that give the number that they are given."""
_CALLING = frozenset(("verify", "verify_step", "partial", "run"))
"""Calls that call their first argument."""
_TURNS = 8
"""Times that a number is handed on."""

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Scope: TypeAlias = _Function | None
_HANDING_ON = (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.Dict, ast.Call, *_Function.__args__)


@dataclass(eq=False)
class _Source:
    """One file.

    Attributes:
      functions: its functions, by their first line and name as code objects have them.
      around: by function those around it, from the inside out.
      bound: by function, or None for the module, the names that it binds.
      kept: likewise those that hold the number of replicas.
      statements: what hands values on, with the functions around it, and whether it stands in a class body.
      classes: its classes.
      methods: its functions that belong to classes.
    """

    functions: dict[tuple[int, str], _Function] = field(default_factory=dict)
    around: dict[_Function, tuple[_Function, ...]] = field(default_factory=dict)
    bound: dict[_Scope, set[str]] = field(default_factory=dict)
    kept: dict[_Scope, set[str]] = field(default_factory=dict)
    statements: list[tuple[ast.AST, tuple[_Function, ...], bool]] = field(default_factory=list)
    classes: list[ast.ClassDef] = field(default_factory=list)
    methods: set[_Function] = field(default_factory=set)

    def kept_beside(self, name: str, around: Sequence[_Function]) -> set[str]:
        """The names that hold the number of replicas in the function, or else the module, that binds `name`."""
        return self.kept[next((one for one in around if name in self.bound[one]), None)]


class Counting:
    """The names that hold the number of replicas.

    Args:
      texts: by file its source.

    Attributes:
      attributes: those of objects.
      keys: those of dictionaries.
    """

    def __init__(self, texts: dict[str, str]) -> None:
        self.attributes: set[str] = set()
        self.keys: set[str] = set()
        self._sources: dict[str, _Source] = {}
        self._named: dict[str, list[tuple[_Source, _Function]]] = {}
        self._classes: dict[str, tuple[_Source, ast.ClassDef]] = {}
        self._given: set[str] = set()
        """The names of functions and classes that are given the number."""
        self._unread = dict(texts)
        for _ in range(_TURNS):
            before = self._size()
            self._read_more()
            for source in self._sources.values():
                for node, around, in_class in source.statements:
                    self._follow(source, node, around, in_class=in_class)
            if self._size() == before:
                break

    def _read_more(self) -> None:
        """Reads the files that have the number, or get it: to read all those of a large program takes seconds."""
        attributes, given = ("|".join(map(re.escape, names)) or "(?!)" for names in (self.attributes, self._given))
        holds = re.compile(rf"\b{COUNT}\b|\.\s*(?:{attributes})\b|\b(?:def|class)\s+(?:{given})\b").search
        for file in [file for file, text in self._unread.items() if holds(text)]:
            try:
                source = _read(self._unread.pop(file))
            except (SyntaxError, ValueError):  # a cell with magic
                continue
            source = replace(source, kept={scope: set() for scope in source.bound})
            self._sources[file] = source
            for (_, name), function in source.functions.items():
                self._named.setdefault(name, []).append((source, function))
            self._classes.update((one.name, (source, one)) for one in source.classes)

    def __bool__(self) -> bool:
        return self._size() > 0

    def of_module(self, file: str) -> set[str]:
        """The names of a module; of a file that is not known, such as a notebook's cell, those of all."""
        if file in self._sources:
            return self._sources[file].kept[None]
        if file in self._unread:
            return set()
        return set().union(*(one.kept[None] for one in self._sources.values()))

    def of_function(self, file: str, line: int, name: str) -> set[str]:
        """The names that a function has as parameters, or from the functions around it."""
        source = self._sources.get(file, _Source())
        function = source.functions.get((line, name))
        if function is None:
            return set()
        found: set[str] = set()
        hidden: set[str] = set()
        for scope in (function, *source.around[function]):
            found |= source.kept[scope] - hidden
            hidden |= source.bound[scope]
        return found

    def _size(self) -> int:
        kept = sum(len(names) for one in self._sources.values() for names in one.kept.values())
        return len(self.attributes) + len(self.keys) + len(self._given) + kept

    def _is_count(self, source: _Source, node: ast.AST | None, around: Sequence[_Function]) -> bool:
        """True for an expression that is the number of replicas."""
        match node:
            case ast.Attribute(attr=name):
                return name == COUNT or name in self.attributes
            case ast.Name(id=name):
                return name in source.kept_beside(name, around)
            case ast.Call(func=function, args=[first, *_]):
                return _called(function) in _SAME and self._is_count(source, first, around)
            case ast.IfExp(body=one, orelse=other):
                return self._is_count(source, one, around) or self._is_count(source, other, around)
            case ast.NamedExpr(value=value):
                return self._is_count(source, value, around)
            case ast.BoolOp(values=values):
                return any(self._is_count(source, one, around) for one in values)
            case _:
                return False

    def _follow(self, source: _Source, node: ast.AST, around: tuple[_Function, ...], *, in_class: bool) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(source, target, value, around, in_class=in_class)
            case ast.AnnAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                self._assign(source, target, value, around, in_class=in_class)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and self._is_count(source, value, around):
                        self.keys.add(str(key.value))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                given = node.args
                names = [*given.posonlyargs, *given.args]
                pairs = [*zip(reversed(names), reversed(given.defaults), strict=False)]
                for name, value in (*pairs, *zip(given.kwonlyargs, given.kw_defaults, strict=True)):
                    if self._is_count(source, value, around):
                        source.kept[node].add(name.arg)
            case ast.Call():
                self._call(source, node, around)
            case _:
                pass

    def _assign(
        self,
        source: _Source,
        target: ast.expr,
        value: ast.expr | None,
        around: tuple[_Function, ...],
        *,
        in_class: bool,
    ) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
                for one, other in zip(target.elts, value.elts, strict=True):
                    self._assign(source, one, other, around, in_class=in_class)
        elif self._is_count(source, value, around):
            match target:
                case ast.Name(id=name) if in_class:
                    self.attributes.add(name)
                case ast.Name(id=name):
                    source.kept_beside(name, around).add(name)
                case ast.Attribute(attr=name):
                    self.attributes.add(name)
                case ast.Subscript(slice=ast.Constant(value=str(name))):
                    self.keys.add(name)
                case _:
                    pass

    def _call(self, source: _Source, node: ast.Call, around: tuple[_Function, ...]) -> None:
        name, places = _called(node.func), list(node.args)
        keywords = {one.arg: one.value for one in node.keywords if one.arg is not None}
        if name in ("dict", "partial"):
            self.keys.update(key for key, value in keywords.items() if self._is_count(source, value, around))
        if places and name in _CALLING:
            # What these call is their first argument, with the others.
            function, *places = places
            if name == "run":
                own = keywords.get("args", places[0] if places else None)
                places = list(own.elts) if isinstance(own, ast.Tuple | ast.List) else []
                keywords = {}
            name = _called(function)
        for place, value in (*enumerate(places), *keywords.items()):
            if name is not None and self._is_count(source, value, around):
                self._hand(name, place)

    def _hand(self, name: str, place: int | str) -> None:
        """Notes that a function, or a class, is given the number of replicas."""
        self._given.add(name)
        functions = self._named.get(name, [])
        if name in self._classes:
            source, made = self._classes[name]
            begin = [one for one in made.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
            functions = [(source, one) for one in begin]
            fields = [
                one.target.id for one in made.body if isinstance(one, ast.AnnAssign) if isinstance(one.target, ast.Name)
            ]
            if not begin and (place in fields or (isinstance(place, int) and place < len(fields))):
                self.attributes.add(fields[place] if isinstance(place, int) else place)
        for source, function in functions:
            given = function.args
            names = [one.arg for one in (*given.posonlyargs, *given.args)][function in source.methods :]
            if isinstance(place, int) and place < len(names):
                source.kept[function].add(names[place])
            elif place in (*names, *(one.arg for one in given.kwonlyargs)):
                source.kept[function].add(str(place))


def _called(node: ast.expr) -> str | None:
    """The name of what is called."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return None


@functools.lru_cache(maxsize=1000)
def _read(text: str) -> _Source:
    source = _Source()
    source.bound[None] = set()
    _collect(source, ast.parse(text), (), in_class=False)
    return source


def _collect(source: _Source, node: ast.AST, around: tuple[_Function, ...], *, in_class: bool) -> None:
    for child in ast.iter_child_nodes(node):
        scope = around[0] if around else None
        if isinstance(child, _HANDING_ON):
            source.statements.append((child, around, in_class))
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            source.functions[_first(child)] = child
            source.around[child] = around
            source.bound[child] = set(_parameters(child))
            if not isinstance(child, ast.Lambda) and not in_class:
                source.bound[scope].add(child.name)
            if in_class:
                source.methods.add(child)
            _collect(source, child, (child, *around), in_class=False)
        elif isinstance(child, ast.ClassDef):
            source.classes.append(child)
            _collect(source, child, around, in_class=True)
        else:
            if isinstance(child, ast.Global) and scope is not None:
                source.bound[scope] -= set(child.names)
                source.bound[None].update(child.names)
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store) and not in_class:
                source.bound[scope].add(child.id)
            _collect(source, child, around, in_class=in_class)


def _first(node: _Function) -> tuple[int, str]:
    if isinstance(node, ast.Lambda):
        return node.lineno, "<lambda>"
    return min(one.lineno for one in (node, *node.decorator_list)), node.name


def _parameters(node: _Function) -> Iterator[str]:
    given = node.args
    several = (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg)
    yield from (one.arg for one in several if one is not None)
