"""Bad results, errors, arguments and messages of scheduled functions, and a generator of more.

python tests/addons/parameter_servers/hostile.py --count 2000 [--seed 0]

It prints how many of the generated cases hung, were silently wrong, or gave a raw error of another library.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import enum
import json
import logging
import os
import pickle
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import msgpack
import numpy as np
import zmq

import jaxtribute as jd
from jaxtribute._src.addons.messaging import wire
from jaxtribute._src.addons.messaging.transport import Link, TaskSettings
from jaxtribute._src.addons.parameter_servers.server.server_task import ServerTask
from jaxtribute._src.core.folders import Folder
from jaxtribute.errors import JaxtributeError
from parameter_servers.clusters import coordinated

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


def _native(value: Any) -> Any:
    array = np.asarray(value)
    return array.astype(array.dtype.newbyteorder("="))


def _same(expected: Any) -> Callable[[Any], bool]:
    def check(found: Any) -> bool:
        if isinstance(expected, np.ma.MaskedArray):
            return isinstance(found, np.ma.MaskedArray) and found.tolist() == expected.tolist()
        if isinstance(expected, (np.ndarray, np.generic)):
            one, other = _native(expected), _native(found)
            return one.dtype == other.dtype and bool(np.array_equal(one, other))
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
    "masked": _kept(np.ma.array([1, 2, 3], mask=[False, True, False])),
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
        """Returns `"well"`, `"hang"`, `"wrong"`, or `"raw"` for an error of another library as it is."""
        if self.hung:
            return "hang"
        if self.error is None:
            return "well" if check(self.value) else "wrong"
        known = isinstance(self.error, (JaxtributeError, OddError)) or bool(getattr(self.error, "__notes__", None))
        return "well" if known else "raw"

    def __str__(self) -> str:
        with contextlib.suppress(BaseException):
            return f"{self.value!r:.300} {self.error!r}"
        return "(cannot be said)"


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


# Generated cases.


def _composed(rng: random.Random, depth: int) -> Case:
    """A random nest of results, good and bad; with a bad one in it, all of it is refused."""
    if depth == 0 or rng.random() < 0.3:
        return RESULTS[rng.choice(sorted(RESULTS))]
    parts = [_composed(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    kind: Any = rng.choice([list, tuple, dict, collections.OrderedDict, Pair])

    def make() -> Any:
        values = [part() for part, _ in parts]
        if issubclass(kind, dict):
            return kind(enumerate(values))
        return Pair(values, 1) if kind is Pair else kind(values)

    def check(found: Any) -> bool:
        if type(found).__name__ != kind.__name__:
            return False
        values = list(found.values()) if isinstance(found, dict) else found[0] if kind is Pair else list(found)
        return len(values) == len(parts) and all(ok(value) for (_, ok), value in zip(parts, values, strict=True))

    return make, check


class Pair(NamedTuple):
    """A named tuple."""

    values: Any
    number: int


def _mangled(rng: random.Random, header: Any) -> list[bytes]:
    """The frames of a message, of which something is wrong."""
    odd = [None, -1, 2**63, "x", ODD, [], {}, [[]], b"\xff", 1e300, [["float32", [2**40], b""]], "exchange", "create"]
    header = dict(header)
    for _ in range(rng.randint(1, 3)):
        header[rng.choice([*header, "#", "ops", "pull", "rows", "once", "floor", "keys"])] = rng.choice(odd)
    frames: list[bytes] = [bytes(msgpack.packb(header, unicode_errors="surrogatepass") or b"")]
    if rng.random() < 0.4:
        cut = bytearray(frames[0])
        for _ in range(rng.randint(1, 4)):
            cut[rng.randrange(len(cut))] = rng.randrange(256)
        frames[0] = bytes(cut[: rng.randint(1, len(cut))])
    return frames + [rng.randbytes(rng.randint(0, 40)) for _ in range(rng.randint(0, 2))]


class Listeners:
    """An RPC server and a parameter server that are sent mangled messages."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._rpc = stack.enter_context(jd.experimental.rpc.Server.create("grpc", "127.0.0.1:0"))
        self._rpc.register("echo", lambda *values: values)
        folder = Folder()
        stack.callback(folder.close)
        self._task = ServerTask(0, TaskSettings(folder.path))
        thread = threading.Thread(target=self._task.run, daemon=True)
        thread.start()
        stack.callback(thread.join, WAIT_S)
        stack.callback(self._task.stop)
        self._link = Link(self._task.endpoint)
        stack.callback(self._link.close)
        assert self._server_answers()

    def to_rpc(self, rng: random.Random) -> str:
        """Sends the RPC server a mangled call; `"well"` if it answers the next one."""
        frames = _mangled(rng, {"id": 1, "method": "echo", "args": ["t", [["v", 1]]]})
        with zmq.Context(io_threads=1) as context, context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(f"tcp://{self._rpc.address}")
            socket.send_multipart(frames)
            socket.send_multipart(wire.pack({"id": 77, "method": "echo", "args": ["t", [["v", 5]]]}))
            end = time.monotonic() + WAIT_S
            while socket.poll(int(max(0, end - time.monotonic()) * 1e3)):
                header = wire.unpack(socket.recv_multipart())[0]
                if header["id"] == 77:
                    return "well" if header.get("value") == ["t", [["v", 5]]] else "wrong"
        return "hang"

    def to_server(self, rng: random.Random) -> str:
        """Sends the parameter server a mangled request; `"well"` if it answers the next one."""
        self._link.send(_mangled(rng, {"t": "exchange", "n": 1, "e": 1, "pull": [], "rows": []}))
        return "well" if self._server_answers() else "hang"

    def _server_answers(self) -> bool:
        number = time.monotonic_ns()
        self._link.send(wire.pack({"t": "activate", "epoch": 1, "n": number}))
        end = time.monotonic() + WAIT_S
        while (frames := self._link.receive(max(0.0, end - time.monotonic()))) is not None:
            if wire.unpack(frames)[0].get("n") == number:
                return True
        return False


def generated(count: int, seed: int) -> collections.Counter[str]:
    """Runs so many generated cases; returns how many ended how."""
    rng = random.Random(seed)
    found: collections.Counter[str] = collections.Counter()
    with contextlib.ExitStack() as stack:
        coordinator = stack.enter_context(coordinated(workers=2))
        listeners = Listeners(stack)
        for number in range(count):
            kind = rng.choice(["result", "result", "argument", "error", "call", "request"])
            if kind in ("call", "request"):
                outcome, verdict = None, listeners.to_rpc(rng) if kind == "call" else listeners.to_server(rng)
            else:
                outcome, verdict = _scheduled(coordinator, kind, rng)
            found[verdict] += 1
            if verdict != "well":
                sys.stderr.write(f"case {number} of seed {seed}, {kind}: {verdict} {outcome}\n")
            if verdict == "hang":
                break  # nothing after it would say anything
        if not found["hang"]:
            found["wrong"] += coordinator.fetch([coordinator.schedule(_given, (i,)) for i in range(4)]) != [0, 1, 2, 3]
    return +found


def _scheduled(coordinator: jd.coordinator.ClusterCoordinator, kind: str, rng: random.Random) -> tuple[Outcome, str]:
    if kind == "error":
        make_error = ERRORS[rng.choice(sorted(ERRORS))]

        def fail() -> None:
            raise make_error()

        outcome = outcome_of(coordinator, fail)
        return outcome, outcome.verdict(_refused)
    make, check = _composed(rng, 3)
    outcome = outcome_of(coordinator, make) if kind == "result" else outcome_of(coordinator, _given, make)
    return outcome, outcome.verdict(check)


def _given(value: Any) -> Any:
    return value


def main() -> int:
    """Runs generated cases and prints the counts; fails if one hung or was silently wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    begun = time.monotonic()
    found = generated(options.count, options.seed)
    sys.stdout.write(json.dumps({**found, "seconds": round(time.monotonic() - begun)}) + "\n")
    return int(bool(found["hang"] or found["wrong"] or found["raw"] > options.count // 100))


if __name__ == "__main__":
    sys.exit(main())
