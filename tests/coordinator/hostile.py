"""Bad results, errors, arguments and messages of scheduled functions, and a generator of more.

python tests/coordinator/hostile.py --count 2000 [--seed 0]

It prints how many of the generated cases hung, were silently wrong, or gave a raw error of another library.
"""

from __future__ import annotations

import collections
import enum
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import numpy as np

import jaxtribute as jd
from jaxtribute.errors import JaxtributeError

WAIT_S = 30.0
ODD = os.fsdecode(b"caf\xe9.txt")


class Loud:
    """Raises what it is told to, wherever a library asks it for something."""

    def __init__(self, where: str, error: BaseException) -> None:
        self.where, self.error = where, error

    def __reduce__(self) -> Any:
        if self.where == "pickle":
            raise self.error
        return _rebuilt, (self.where, self.error)

    def __repr__(self) -> str:
        if self.where == "repr":
            raise self.error
        return "Loud()"


def _rebuilt(where: str, error: BaseException) -> Any:
    if where == "unpickle":
        raise error
    return Loud(where, error)


class OddError(Exception):
    """An error that raises where it is told to."""

    def __init__(self, where: str = "", inner: BaseException | None = None) -> None:
        super().__init__(where)
        self.where, self.inner = where, inner or ValueError("inner")

    def __str__(self) -> str:
        if self.where == "str":
            raise self.inner
        return f"odd in {self.where}"

    def __reduce__(self) -> Any:
        if self.where == "pickle":
            raise self.inner
        return (_fall if self.where == "unpickle" else OddError), (self.where, self.inner)

    def add_note(self, note: str, /) -> None:
        if self.where == "note":
            raise self.inner
        super().add_note(note)


def _fall(where: str, inner: BaseException) -> Any:
    raise inner


class NeedsTwoError(Exception):
    """An error whose class cannot be called with its `args`, as pickle does."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} {two}")


class Color(enum.Enum):
    RED = "red"


class Text(str):
    """A string that is more."""

    __slots__ = ("note",)


def _cycle() -> Any:
    made: list[Any] = [1]
    made.append(made)
    return made


def _nested(depth: int, kind: type = list) -> Any:
    made: Any = 7
    for _ in range(depth):
        made = {"k": made} if kind is dict else kind([made])
    return made


def _depth(value: Any) -> int:
    depth = 0
    while isinstance(value, (list, tuple, dict)):
        value = value["k"] if isinstance(value, dict) else value[0]
        depth += 1
    return depth


def _same(expected: Any) -> Callable[[Any], bool]:
    def check(found: Any) -> bool:
        if isinstance(expected, np.ma.MaskedArray):
            return isinstance(found, np.ma.MaskedArray) and found.tolist() == expected.tolist()
        if isinstance(expected, (np.ndarray, np.generic)):
            native = np.asarray(expected).astype(np.asarray(expected).dtype.newbyteorder("="))
            return np.asarray(found).dtype == native.dtype and bool(np.array_equal(found, native))
        return bool(type(found) is type(expected) and found == expected)

    return check


def _kept(value: Any) -> tuple[Callable[[], Any], Callable[[Any], bool]]:
    return lambda: value, _same(value)


def _refused(_: Any) -> bool:
    return False


Case = tuple[Callable[[], Any], Callable[[Any], bool]]
"""What makes a value, and a check of what comes back, if anything does."""

RESULTS: dict[str, Case] = {
    "lone surrogate": _kept(ODD),
    "surrogate as key": _kept({ODD: {ODD: (ODD,)}}),
    "names of files": _kept([ODD, "b", "\ud800\udfff", "\udfff"]),
    "zero bytes": _kept("a\0b"),
    "big integer": _kept(-(2**90)),
    "integer at the edge": _kept([2**63, 2**64 - 1, -(2**63)]),
    "not a number": (lambda: float("nan"), lambda found: found != found),
    "list in itself": (_cycle, lambda found: found[1] is found and found[0] == 1),
    "deep list": (lambda: _nested(300), lambda found: _depth(found) == 300),
    "deep dictionary": (lambda: _nested(200, dict), lambda found: _depth(found) == 200),
    "very deep tuple": (lambda: _nested(20_000, tuple), lambda found: _depth(found) == 20_000),
    "keys of NumPy": (lambda: {np.int64(3): 1, np.float32(0.5): 2}, lambda found: found == {3: 1, 0.5: 2}),
    "keys that are tuples": _kept({(1, (2, "x")): 1}),
    "other order of bytes": _kept(np.arange(5, dtype=">i4")),
    "other order, large": _kept(np.arange(5000, dtype=">f8")),
    "masked": _kept(np.ma.array([1, 2, 3], mask=[0, 1, 0])),
    "structured": _kept(np.zeros(2, dtype=[("a", "i4"), ("b", "f4")])),
    "void": _kept(np.void(b"abc")),
    "dates": _kept(np.array(["2020-01-01"], "M8[D]")),
    "strings of NumPy": _kept(np.array(["a", "bc"])),
    "objects of NumPy": (lambda: np.array([1, "a", None], object), lambda found: found.tolist() == [1, "a", None]),
    "long double": _kept(np.longdouble("1.1")),
    "key of random numbers": (
        lambda: jax.random.key(3),
        lambda found: jax.random.key_data(found).tolist() == jax.random.key_data(jax.random.key(3)).tolist(),
    ),
    "enum": (lambda: Color.RED, lambda found: found.value == "red"),
    "subclass of str": (lambda: Text("x"), lambda found: found == "x" and type(found).__name__ == "Text"),
    "counter": (lambda: collections.Counter("aab"), lambda found: dict(found) == {"a": 2, "b": 1}),
    "frozen set": _kept(frozenset({1, 2})),
    "complex": _kept(1 + 2j),
    "generator": (lambda: (i for i in range(3)), _refused),
    "lock": (threading.Lock, _refused),
    "pickling raises": (lambda: Loud("pickle", ValueError("odd")), _refused),
    "pickling exits": (lambda: Loud("pickle", SystemExit(0)), _refused),
    "unpickling raises": (lambda: Loud("unpickle", ValueError("odd")), _refused),
    "unpickling exits": (lambda: Loud("unpickle", SystemExit(0)), _refused),
    "unpickling interrupts": (lambda: Loud("unpickle", KeyboardInterrupt()), _refused),
    "no representation": (lambda: Loud("repr", ValueError("odd")), lambda found: found.where == "repr"),
}

ERRORS: dict[str, Callable[[], BaseException]] = {
    "lone surrogate": lambda: OSError(2, "no such file", ODD),
    "exit": lambda: SystemExit(0),
    "interrupt": KeyboardInterrupt,
    "end of a generator": GeneratorExit,
    "stop": StopIteration,
    "group": lambda: ExceptionGroup("several", [ValueError(ODD), KeyError(1)]),
    "group with exit": lambda: BaseExceptionGroup("several", [SystemExit(1)]),
    "needs two": lambda: NeedsTwoError(1, 2),
    "holds a lock": lambda: ValueError(threading.Lock()),
    "deep": lambda: ValueError(_nested(5000)),
    "recursion": RecursionError,
    "memory": MemoryError,
    "pickle error": lambda: pickle.PicklingError("odd"),
    **{
        f"{where} raises {inner.__name__}": lambda where=where, inner=inner: OddError(where, inner("inner"))
        for where in ("str", "pickle", "unpickle", "note")
        for inner in (ValueError, SystemExit, KeyboardInterrupt)
    },
}

ARGUMENTS: dict[str, Case] = {
    name: RESULTS[name]
    for name in (
        "lone surrogate", "surrogate as key", "big integer", "other order of bytes", "masked", "structured", "dates",
        "objects of NumPy", "long double", "subclass of str", "lock", "pickling raises", "unpickling raises",
        "unpickling exits", "generator", "list in itself", "deep list", "very deep tuple",
    )
}  # fmt: skip


@dataclass
class Outcome:
    """How a case ended: with a value, with an error, or not at all."""

    value: Any = None
    error: BaseException | None = None
    hung: bool = False
    seconds: float = 0.0

    def verdict(self, check: Callable[[Any], bool]) -> str:
        """Returns `"well"`, `"hang"`, `"wrong"`, or `"raw"` for an error that says nothing of this library."""
        if self.hung:
            return "hang"
        if self.error is None:
            return "well" if check(self.value) else "wrong"
        ours = isinstance(self.error, JaxtributeError) or bool(getattr(self.error, "__notes__", None))
        return "well" if ours else "raw"


def outcome_of(
    coordinator: jd.coordinator.ClusterCoordinator, function: Callable[..., Any], make: Callable[[], Any] | None = None
) -> Outcome:
    """Schedules a function, waits for it in a thread, and leaves the coordinator as it was."""
    outcome = Outcome(hung=True)
    begun = time.monotonic()

    def run() -> None:
        try:
            args = () if make is None else (make(),)
            outcome.value = coordinator.schedule(function, args).fetch()
        except BaseException as error:  # noqa: BLE001 (all of them are looked at)
            outcome.error = error
        try:
            coordinator.join()
        except BaseException as error:  # noqa: BLE001
            outcome.error = outcome.error or error
        outcome.hung, outcome.seconds = False, time.monotonic() - begun

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(WAIT_S)
    return outcome
