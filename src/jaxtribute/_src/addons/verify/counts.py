"""Numbers of replicas that a program keeps: while a step runs on other replicas, they are the number of those."""

from __future__ import annotations

import functools
import linecache
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import Strategy, Variable
from jaxtribute._src.addons.verify.counting import COUNT, Counting
from jaxtribute._src.addons.verify.operations import is_key
from jaxtribute._src.addons.verify.sources import is_theirs
from jaxtribute.extending import Tracer
from jaxtribute.typing import Function as Callee

_FAR = 5
"""Objects of libraries that are looked through, from one of the user's to the next."""
_MOST = 50_000
"""Objects that are looked at."""


class Counts:
    """The places at which what a step reads keeps the number of replicas.

    Args:
      call: the step's function.
      count: the number of replicas.

    Attributes:
      fixed: the names of those that cannot be changed.
    """

    def __init__(self, call: Callee, count: int) -> None:
        self._count = count
        self.fixed: list[str] = []
        self._places: dict[tuple[int, str], _Place] = {}
        self._compiled: list[Any] = []
        """Functions that JAX keeps the programs of, which have such numbers in them."""
        self._counting = _counting(call)
        if not self._counting:
            return
        self._read: set[str] = set()
        self._attributes: list[tuple[Any, str]] = []
        self._walk(call)
        for owner, name in self._attributes:
            if name in self._read:
                self._note(owner, name, getattr(owner, name, None), functools.partial(_put, owner, name))
        del self._read, self._attributes

    def parameters(self, call: Callee, values: Sequence[Any]) -> list[int]:
        """The places of arguments that are the number of replicas."""
        code = getattr(getattr(call, "python_function", call), "__code__", None)
        if not self._counting or code is None:
            return []
        kept = self._counting.of_function(code.co_filename, code.co_firstlineno, code.co_name)
        named = zip(code.co_varnames[: code.co_argcount], values, strict=False)
        return [place for place, (name, value) in enumerate(named) if name in kept and self._is_count(value)]

    @contextmanager
    def others(self, count: int) -> Generator[None]:
        """Lets all of them be another number, until the block ends."""
        with ExitStack() as stack:
            for place in self._places.values():
                stack.callback(place.put, place.value)
                place.put(_like(place.value, count))
            for compiled in self._compiled if self._places else ():
                stack.callback(compiled.clear_cache)
                compiled.clear_cache()
            yield

    def _is_count(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float | np.generic | np.ndarray | jax.Array):
            return False
        known = not isinstance(value, Tracer) and not is_key(value)
        return known and np.ndim(value) == 0 and bool(value == self._count)

    def _note(self, owner: Any, name: str, value: Any, put: Callable[[Any], None]) -> None:
        if not self._is_count(value) or (id(owner), name) in self._places:
            return
        try:
            put(value)
        except (AttributeError, TypeError):
            self.fixed.append(name)
            return
        self._places[id(owner), name] = _Place(owner, value, put)

    def _walk(self, call: Any) -> None:
        todo, seen = [(call, 0)], dict[int, Any]()
        while todo and len(seen) < _MOST:
            one, far = todo.pop()
            if id(one) in seen or one is None or isinstance(one, _LEAVES):
                continue
            seen[id(one)] = one
            near = _is_users(one)
            far = 0 if near else far + 1
            if far <= _FAR:
                todo += [(other, far) for other in self._behind(one, near=near)]

    def _behind(self, one: Any, *, near: bool) -> Iterator[Any]:
        """Gives what an object leads to, and notes the numbers that it keeps itself."""
        if hasattr(one, "clear_cache") and hasattr(one, "__wrapped__"):
            self._compiled.append(one)
        if isinstance(one, FunctionType):
            yield from self._of_function(one, near=near)
        elif isinstance(one, MethodType):
            yield from (one.__self__, one.__func__)
        elif isinstance(one, functools.partial):
            given = self.parameters(one.func, one.args)
            self.fixed += [str(one.func.__code__.co_varnames[place]) for place in given]
            yield from (one.func, *one.args, one.keywords)
        elif isinstance(one, ModuleType):
            if near:
                self._of_names(vars(one), self._counting.of_module(str(one.__file__)))
                yield from (each for each in vars(one).values() if isinstance(each, FunctionType | type))
        elif isinstance(one, type):
            if near:
                self._attributes += [(one, name) for name in self._counting.attributes if name in vars(one)]
                yield from (*vars(one).values(), *one.__mro__[1:])
        elif isinstance(one, dict):
            self._of_names(one, self._counting.keys, read=True)
            yield from list(one.values())
        elif isinstance(one, list | tuple | set | frozenset):
            # Fields of a named tuple cannot be changed.
            self._attributes += [
                (one, name) for name in getattr(one, "_fields", ()) if name in self._counting.attributes
            ]
            yield from list(one)
        elif isinstance(one, property):
            yield one.fget
        else:
            own = getattr(one, "__dict__", {})
            self._attributes += [
                (one, name) for name in self._counting.attributes if name in own or _has_slot(one, name)
            ]
            yield from (*own.values(), type(one), getattr(one, "__wrapped__", None))

    def _of_function(self, one: FunctionType, *, near: bool) -> Iterator[Any]:
        code = one.__code__
        names = self._counting.of_function(code.co_filename, code.co_firstlineno, code.co_name) if near else set[str]()
        if near:
            read = set(_names(code))
            self._read |= read
            own = {name: one.__globals__[name] for name in read if name in one.__globals__}
            self._of_names(one.__globals__, self._counting.of_module(code.co_filename) & set(own), read=True)
            yield from own.values()
        for name, cell in zip(code.co_freevars, one.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # not set yet
                continue
            if name in names:
                self._note(cell, name, value, functools.partial(setattr, cell, "cell_contents"))
            yield value
        if one.__defaults__ is not None:
            start = code.co_argcount - len(one.__defaults__)
            for place, value in enumerate(one.__defaults__):
                name = code.co_varnames[start + place]
                if name in names:
                    self._note(one, name, value, functools.partial(_put_default, one, place))
                yield value
        if one.__kwdefaults__:
            self._of_names(one.__kwdefaults__, names, read=True)
            yield from list(one.__kwdefaults__.values())
        yield getattr(one, "__wrapped__", None)

    def _of_names(self, held: dict[str, Any], names: set[str], *, read: bool = False) -> None:
        for name in names:
            if name in held and (read or name in self._read):
                self._note(held, name, held[name], functools.partial(held.__setitem__, name))


class _Place(NamedTuple):
    """A place."""

    owner: Any
    """The object that has it, which its id names as long as it is kept."""
    value: Any
    """The number that stands there."""
    put: Callable[[Any], None]
    """Puts another one there."""


_LEAVES = str, bytes, int, float, complex, np.ndarray, np.generic, jax.Array, Variable, Strategy


def _counting(call: Callee) -> Counting:
    """The names in all files of the user's."""
    files = {getattr(one, "__file__", None) for one in list(sys.modules.values())}
    code = getattr(getattr(call, "python_function", call), "__code__", None)
    # Those of a notebook's cells are no files.
    files |= {file for file in linecache.cache if "ipykernel" in file} | {getattr(code, "co_filename", None)}
    texts: dict[str, str] = {}
    for file in sorted(str(one) for one in files if one):
        if file.endswith(".py") and _is_own_file(file):
            texts[file] = "".join(linecache.getlines(file))
    if not any(COUNT in text for text in texts.values()):
        texts = {}
    return _counted(tuple(texts.items()))


@functools.lru_cache(maxsize=4)
def _counted(texts: tuple[tuple[str, str], ...]) -> Counting:
    return Counting(dict(texts))


_is_own_file = functools.lru_cache(maxsize=None)(is_theirs)


def _is_users(one: Any) -> bool:
    """True for a function, a class, a module or an instance of the user's."""
    if isinstance(one, FunctionType):
        return _is_own_file(one.__code__.co_filename)
    if isinstance(one, ModuleType):
        return bool(getattr(one, "__file__", None)) and _is_own_file(str(one.__file__))
    module = sys.modules.get(str(getattr(one if isinstance(one, type) else type(one), "__module__", "")))
    file = getattr(module, "__file__", None)
    if module is None:
        return True  # of a program that was run by its path
    return _is_own_file(file) if file else module.__name__ == "__main__"


def _names(code: Any) -> Iterator[str]:
    """All names that a function, and those within it, read."""
    yield from (*code.co_names, *code.co_freevars)
    for one in code.co_consts:
        if hasattr(one, "co_names"):
            yield from _names(one)


def _has_slot(one: Any, name: str) -> bool:
    return any(name in getattr(kind, "__slots__", ()) for kind in type(one).__mro__) and hasattr(one, name)


def _put(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, type):
        setattr(owner, name, value)
    elif name in getattr(owner, "__dict__", {}):
        vars(owner)[name] = value  # also of a frozen dataclass
    else:
        object.__setattr__(owner, name, value)


def _put_default(function: FunctionType, place: int, value: Any) -> None:
    own = list(function.__defaults__ or ())
    own[place] = value
    function.__defaults__ = tuple(own)


def _like(value: Any, count: int) -> Any:
    """The number, as the value is one."""
    if isinstance(value, jax.Array):
        return jnp.asarray(count, value.dtype)
    return np.asarray(count, value.dtype) if isinstance(value, np.ndarray) else type(value)(count)
