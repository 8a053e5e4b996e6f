"""Functions on their way to workers, through Ray: what belongs to the cluster travels as a reference.

A variable, the strategy, an optimizer and a dataset of each worker are found again by their numbers, so that a function
that closes over a model meets the worker's own view of the same variables. Everything else travels by value, functions
and classes of the user's own modules included: they need not be importable on the workers.
"""

from __future__ import annotations

import io
import itertools
import threading
from collections.abc import Callable, Hashable, Sequence
from types import FunctionType
from typing import IO, TYPE_CHECKING, Any, Protocol, TypeVar, cast

import cloudpickle
import optax

from jaxtribute import Optimizer, Variable
from jaxtribute._src.addons.messaging.errors import told
from jaxtribute._src.addons.parameter_servers.variables.optimizer import RemoteOptimizer
from jaxtribute._src.addons.parameter_servers.variables.variable import ServerVariable, VariableDescription
from jaxtribute.errors import ArgumentTypeError
from jaxtribute.extending import Callers, Function
from jaxtribute.typing import Foreign, Leaf, Nest

if TYPE_CHECKING:
    from jaxtribute import Strategy


_keys = itertools.count(1)
_KEY = "_jd_key_on_workers"
F = TypeVar("F", bound=Function[..., Any])


class Home(Protocol):
    """Place where references are found again: a worker."""

    @property
    def strategy(self) -> Strategy:
        """The strategy."""
        ...

    def variable(self, description: VariableDescription) -> ServerVariable:
        """The variable of that description."""
        ...

    def function(
        self,
        key: tuple[int, int],
        kind: type[F],
        python_function: Callable[..., Any],
        signature: Nest,
        donated: Sequence[int],
    ) -> F:
        """The compiled function of that number."""
        ...

    def optimizer(self, remote: RemoteOptimizer, transform: optax.GradientTransformation, variables: Nest) -> Optimizer:
        """The optimizer of that number."""
        ...

    def resource(self, key: int, blob: bytes) -> Any:
        """Reference to an object that a function makes once on each worker."""
        ...


class Sender(Protocol):
    """The way in which an integration sends objects of its library: the attribute `__jd_sender__` of their classes."""

    @property
    def received(self) -> Callable[[bytes], Any]:
        """Unpickles on a worker, where the library must be set up before."""
        ...

    def reduced(self, obj: Foreign) -> Any:
        """Form in which an object travels, as of `__reduce__`."""
        ...

    def completed(self, sent: Sequence[Foreign]) -> bool:
        """Brings to the servers what some objects need there; True if that has changed them."""
        ...

    def follow(self, sent: Sequence[Foreign], watch: Watch) -> None:
        """Has `watch` told when objects that were sent become others, such as a layer that is frozen."""
        ...


class _Local(threading.local):
    home: Home | None = None


_local = _Local()


class ByReference:
    """Base of what is a reference on its way to a worker."""

    def reference(self) -> tuple[Any, tuple[Any, ...]]:
        """The function that finds it on the worker, and its arguments."""
        raise NotImplementedError


def live_here(home: Home | None) -> None:
    """Says where the calling thread finds references."""
    _local.home = home


def home() -> Home:
    """The calling thread's place of references.

    Raises:
      ArgumentTypeError: it is no worker's.
    """
    if _local.home is None:
        raise ArgumentTypeError("this object belongs to a worker. HINT: schedule functions on the coordinator only.")
    return _local.home


def find_variable(description: VariableDescription) -> ServerVariable:
    """A variable on this worker."""
    return home().variable(description)


def find_strategy() -> Strategy:
    """The strategy on this worker."""
    return home().strategy


class CoordinatorElsewhere:
    """The coordinator as a function on a worker sees it: its strategy."""

    @property
    def strategy(self) -> Strategy:
        """The strategy on this worker."""
        return home().strategy

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise ArgumentTypeError(
            f"coordinator.{name} was asked for on a worker. HINT: only the process that made the coordinator "
            "schedules; a scheduled function may use coordinator.strategy."
        )


def find_function(
    key: tuple[int, int], kind: type[F], python_function: Callable[..., Any], signature: Nest, donated: Sequence[int]
) -> F:
    """A compiled function on this worker."""
    return home().function(key, kind, python_function, signature, donated)


def find_optimizer(remote: RemoteOptimizer, transform: optax.GradientTransformation, variables: Nest) -> Optimizer:
    """An optimizer on this worker."""
    return home().optimizer(remote, transform, variables)


def find_resource(key: int, blob: bytes) -> Any:
    """Object that was made once on this worker."""
    return home().resource(key, blob)


class Watch:
    """Tells that an object that was sent has changed: workers are to get it again."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        """The number of times that it was sent before."""
        self._changed = False
        self._awaited: list[Callable[[], bool]] = []

    @property
    def changed(self) -> bool:
        """True if an object has changed since it was sent."""
        return self._changed or any(has_come() for has_come in self._awaited)

    def turn(self, change: Hashable) -> None:
        """Takes note of a change, as `Function.turn` does."""
        self._changed = True

    def expect(self, has_come: Callable[[], bool]) -> None:
        """Counts it as a change if `has_come()` is true, as when an optimizer is built that was sent before."""
        self._awaited.append(has_come)


def dumps(value: Nest, *, completes: bool = True, watch: Watch | None = None) -> bytes:
    """Pickles `value` for a worker.

    Args:
      value: anything.
      completes: False if all that an integration's objects need on the servers is there.
      watch: is told of changes in an integration's objects.

    Raises:
      ArgumentTypeError: it holds what cannot be on a worker; the message says what.
    """
    try:
        number = 0 if watch is None else watch.number
        blob, sender, sent = _pickled(value, number)
        if sender is None:
            return blob
        if completes and sender.completed(sent):
            # Once more, since the objects now hold the numbers of what was placed.
            blob, _, sent = _pickled(value, number)
        if watch is not None:
            sender.follow(sent, watch)
        return cloudpickle.dumps(_Received(sender, blob))
    except ArgumentTypeError:
        # It says already what cannot be sent, and why.
        raise
    except (Exception, SystemExit) as error:
        raise ArgumentTypeError(
            f"a function or what it uses cannot be sent to workers: {told(error)}. HINT: it closes over something that "
            "belongs to this process, such as a lock or an open file; make it inside the function."
        ) from error


def _pickled(value: Nest, number: int) -> tuple[bytes, Sender | None, list[Any]]:
    buffer = io.BytesIO()
    pickler = Pickler(buffer, protocol=5)
    pickler.number = number
    pickler.dump(value)
    return buffer.getvalue(), pickler.sender, pickler.sent


class _Received:
    """Stands for a pickled value that an integration takes on a worker."""

    def __init__(self, sender: Sender, blob: bytes) -> None:
        self._received, self._blob = sender.received, blob

    def __reduce__(self) -> Any:
        return self._received, (self._blob,)


def loads(blob: bytes) -> Any:
    """The inverse of `dumps`, on a worker; only for what came through Ray."""
    return cloudpickle.loads(blob)


class Pickler(cloudpickle.Pickler):
    """Makes references of what belongs to the cluster."""

    sender: Sender | None = None
    """Sender of the objects that travel in a way of its own."""
    number = 0
    """The number of times that they were sent before; compiled functions of then are others."""

    def __init__(self, file: IO[bytes], protocol: int) -> None:
        super().__init__(file, protocol=protocol)
        self.sent: list[Leaf] = []

    def reducer_override(self, obj: Leaf) -> Any:
        """Form in which an object travels."""
        kind = type(obj)
        if isinstance(obj, ServerVariable):
            return find_variable, (obj.description,)
        if isinstance(obj, Variable):
            raise ArgumentTypeError(
                f"{obj.name} was not made in the strategy's scope, so that it is on no parameter server, and a worker "
                "would change a copy of it. HINT: create it in `with strategy.scope():`."
            )
        if isinstance(obj, ByReference):
            return obj.reference()
        sender = getattr(kind, "__jd_sender__", None)
        if sender is not None:
            self.sender = sender
            self.sent.append(obj)
            return sender.reduced(obj)
        if isinstance(obj, Function):
            return _function(obj, self.number)
        if kind is Optimizer and obj.remote is not None:
            return find_optimizer, (obj.remote, obj.transform, obj.nest)
        inherited = cast("Any", super())
        # By value: a script, or a module beside it, is on the coordinator's machine only. A library is installed on
        # all, and its functions may refer to state of their module, of which a copy would be a second one.
        if isinstance(obj, FunctionType) and Callers.is_of_user(obj.__module__):
            return cast("Any", self)._dynamic_function_reduce(obj)
        return inherited.reducer_override(obj)


def _function(function: Function[..., Any], number: int) -> tuple[Any, tuple[Any, ...]]:
    python_function = function.python_function
    owner = getattr(python_function, "__self__", None)
    if owner is not None:
        # A method is found by its name at its object, which may travel as a reference itself.
        return getattr, (owner, python_function.__name__)
    # Not its `id`, which another function has when this one is gone: workers would run this one in its place.
    key = function.__dict__.setdefault(_KEY, next(_keys)), number
    return find_function, (key, type(function), python_function, function.input_signature, function.donated)
