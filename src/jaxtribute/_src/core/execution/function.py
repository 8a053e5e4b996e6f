"""`jd.function`: a Python function over variables, compiled into one program a signature."""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, overload

import jax
import numpy as np

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core import settings
from jaxtribute._src.core.execution.capture import Capture, check_captured, foreign_write
from jaxtribute._src.core.execution.eager import Eager, EagerStep, NotSplittable, uncompiled
from jaxtribute._src.core.execution.feeds import FedPrograms, Feed
from jaxtribute._src.core.execution.hints import add_hint
from jaxtribute._src.core.execution.nests import InputSignature, bundled, map_leaves
from jaxtribute._src.core.execution.program import Program, Unusual, program_of
from jaxtribute._src.core.execution.signatures import TRACED, Otherwise, Signature, Signatures, as_given, separate
from jaxtribute._src.core.jaxprs.core import ArrayImpl
from jaxtribute._src.core.observers import DISPATCH, STEP, TRACE, observed
from jaxtribute._src.core.types import Nest
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import VariableError

if TYPE_CHECKING:
    from jaxtribute._src.core.strategies.base import Strategy

_LOG = logging.getLogger(__name__)

_stack, _fallback = contexts.stack, contexts.fallback
"""Looked up once: every step asks for the context in force, as `contexts.current` does."""
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


class Function(Generic[P, R]):
    """A compiled Python function, made by `jd.function`; call it like the function itself.

    Args:
      python_function: the function.
      input_signature: as for `jd.function`.
      donate_argnums: as for `jd.function`.
    """

    __name__: str
    __qualname__: str

    def __init__(
        self, python_function: Callable[P, R], input_signature: Any = None, donate_argnums: Sequence[int] = ()
    ) -> None:
        self.__name__ = self.__qualname__ = type(python_function).__name__  # of objects that are called
        functools.update_wrapper(self, python_function)
        self._python_function = python_function
        self._signature, self._donate = input_signature, tuple(donate_argnums)
        self._conform = None if input_signature is None else InputSignature(input_signature, python_function).conform
        self._signatures = Signatures()
        self._numbers: dict[Any, int] = {}
        self._settled: set[str] = set()
        self._runs: weakref.WeakKeyDictionary[Strategy, Function[..., Any]] = weakref.WeakKeyDictionary()
        self._lock = threading.RLock()
        self._traces = 0
        self._repeatable: tuple[type, ...] = (ArrayImpl,)
        """Classes of arrays that are given to JAX as they are, by calls that may be repeated."""

    def owning_arguments(self) -> Self:
        """This function, whose callers write to no array of NumPy that they have passed: none is copied."""
        self._repeatable = (ArrayImpl, np.ndarray)
        return self

    @property
    def python_function(self) -> Callable[P, R]:
        """The function that was decorated."""
        return self._python_function

    @property
    def input_signature(self) -> Any:
        """The declared shapes and dtypes of the arguments, if any."""
        return self._signature

    @property
    def donated(self) -> tuple[int, ...]:
        """Positions of the arguments that are donated."""
        return self._donate

    def experimental_get_tracing_count(self) -> int:
        """Returns the number of times that the Python function has been traced. Source: `tf.function`."""
        return self._traces

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the compiled program, tracing it first for a new signature."""
        repeated = self._signatures.repeated
        # Most calls are as the one before: of those this asks only what may have changed.
        if repeated is not None and not STEP.observers and not DISPATCH.observers:
            context, again = repeated
            entries = _stack.entries
            if (entries[-1] if entries else entries.base or _fallback.context) == context:
                try:
                    return again(args, kwargs)
                except (Unusual, NotSplittable):  # the general path says what is to be done
                    self._signatures.miss()
        return self._call_looking(contexts.current(), *args, **kwargs)

    def _call_looking(self, context: contexts.Context, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Looks for the program of a call, or makes it, and runs it."""
        executor = context.executor
        within: EagerStep | None = None
        if type(executor) is not Eager:
            if not isinstance(executor, EagerStep) or executor.uncompiled:
                return self._python_function(*args, **kwargs)
            within = executor
        elif STEP.observers and STEP.due():
            return STEP.around(self, self, self.__name__, *args, **kwargs)
        call: Any = (args, kwargs) if self._conform is None else (self._conform(args, kwargs), {})
        leaves, tree = self._signatures.flatten(call)
        statics: tuple[Any, ...] = ()
        feeds: list[Feed] = []
        on_devices = all(type(leaf) in self._repeatable for leaf in leaves)
        if not on_devices:
            leaves, statics, feeds = separate(leaves, call)
        if statics and isinstance(statics[-1], Otherwise):
            traced = statics[-1] is TRACED
            return self._python_function(*args, **kwargs) if traced else self._call_looking(context, *args, **kwargs)
        signature = self._signatures.of(tree, statics, context)
        if feeds:
            return self._call_fed(signature, context, feeds, leaves)
        program = self._signatures.programs.get(signature)
        try:
            if program is None:
                if self._signatures.wants_variables(call, tree):
                    return self(*args, **kwargs)
                program = self._compile(signature, context, leaves)
            if within is None and not statics and isinstance(program, Program):
                whole = call if on_devices else tree.unflatten(leaves)
                arrays = bundled(*whole)
                result = program(leaves, None, arrays)
                if on_devices and self._conform is None:
                    self._signatures.expect(signature, context, program, arrays)
                return result
            return program(leaves, within)
        except NotSplittable as reason:
            return self._run_uncompiled(signature, reason)(leaves)

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(self: Function[Concatenate[Any, Q], R], instance: object, owner: Any = None) -> Function[Q, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Binds the method to `instance`, whose programs are its own."""
        if instance is None:
            return self
        attributes = getattr(instance, "__dict__", None)
        if not isinstance(attributes, dict):
            return MethodType(self, instance)  # a class, or an object with slots: a static argument
        name = f"_jd_function_{self.__name__}"
        bound = cast("dict[str, Any]", attributes).get(name)
        if bound is None or bound.python_function.__self__ is not instance:  # a copy has the original's attributes
            shifted = [place - 1 for place in self._donate]  # `self` is no argument of the bound method
            bound = type(self)(self._python_function.__get__(instance, owner), self._signature, shifted)
            attributes[name] = bound
        return bound

    def __deepcopy__(self, memo: Any) -> Any:
        # A method of the copied object is bound to the copy; a plain function stays as it is.
        return None if hasattr(self._python_function, "__self__") else self

    def __reduce__(self) -> Any:
        return (_unbound, ()) if hasattr(self._python_function, "__self__") else self.__qualname__

    def run_on(self, strategy: Strategy) -> Function[..., Any]:
        """This function as the replica function of a compiled `strategy.run`."""
        runner = self._runs.get(strategy)
        if runner is None:
            owner, run = weakref.ref(strategy), self._python_function

            def run_compiled(*args: Nest, **kwargs: Nest) -> Any:
                alive = owner()
                assert alive is not None
                # Of a variable each replica returns the value that it sees, as every compiled function does.
                seen = lambda leaf: alive.run(leaf.read_value) if isinstance(leaf, Variable) else leaf  # noqa: E731
                return map_leaves(seen, alive.run(run, args, kwargs))

            runner = self._runs[strategy] = Function(run_compiled)
        return runner

    def turn(self, change: Hashable) -> None:
        """Takes note of a change in an object whose variables the programs use: further calls have others.

        Args:
          change: stands for it. The same one a second time takes it back, and the programs of before count again.
        """
        with self._lock:
            self._signatures.turn(change)

    def _call(self, signature: Signature) -> Callable[..., Any]:
        """The Python function of its array arguments, the static ones filled in."""
        function = cast("Callable[..., R]", self._python_function)
        tree, statics = signature.tree, signature.statics

        def call(dynamic: Sequence[Any], feeds: Sequence[Any] = ()) -> Any:
            rest, drawn = iter(dynamic), iter(feeds)
            constants = {place: next(drawn) if kind is Feed else as_given(value) for place, kind, value in statics}
            whole = [constants[i] if i in constants else next(rest) for i in range(tree.num_leaves)]
            args, kwargs = tree.unflatten(whole)
            return function(*args, **kwargs)

        return call

    def _run_uncompiled(self, signature: Signature, reason: NotSplittable) -> Callable[[Sequence[Any]], Any]:
        """Settles for lockstep, which is exact but slow, where replicas of different shapes cannot be one program."""
        call = self._settle(self._call(signature), reason)
        self._signatures.forget()
        self._signatures.programs[signature] = call
        return call

    def _settle(self, call: Callable[[Sequence[Any]], Any], reason: NotSplittable) -> Callable[[Sequence[Any]], Any]:
        """Settles for lockstep; says so once, however many batches and shapes it is for."""
        if str(reason) not in self._settled:
            self._settled.add(str(reason))
            _LOG.warning("%s runs uncompiled: %s. HINT: %s.", self.__name__, reason, reason.hint)
        return uncompiled(call, reason)

    def _call_fed(self, signature: Signature, context: contexts.Context, feeds: list[Feed], leaves: list[Any]) -> Any:
        """Calls with iterators among the arguments; see `feeds`."""
        programs = self._signatures.programs
        if signature not in programs:

            def compile_(call: Callable[[Sequence[Any]], Any], leaves: Sequence[Any]) -> Any:
                first = _laid_out(self._traced(call, context, leaves), leaves)
                return program_of(first, lambda _: first, context.strategy.extended.home, name=self.__name__)

            with self._lock:
                programs.setdefault(signature, FedPrograms(compile_, self._call(signature), self._settle))
        return programs[signature](feeds, leaves)

    def _compile(self, signature: Signature, context: contexts.Context, leaves: list[Any]) -> Callable[..., Any]:
        call, programs = self._call(signature), self._signatures.programs

        def trace(dynamic: Sequence[Any]) -> Capture:
            return self._traced(call, context, dynamic)

        with self._lock:
            self._note_numbers(signature)
            if signature not in programs:
                donated = signature.places_of(self._donate)
                first, home = _laid_out(trace(leaves), leaves), context.strategy.extended.home
                programs[signature] = program_of(first, trace, home, donated, self.__name__, self._repeatable)
            return programs[signature]

    @observed(TRACE)
    def _traced(
        self, call: Callable[[Sequence[Any]], Any], context: contexts.Context, leaves: Sequence[Any]
    ) -> Capture:
        first = self._traces == 0
        try:
            result = Capture.of(call, context, leaves)
        except jax.errors.ConcretizationTypeError as error:
            error.add_note(
                f"HINT: {self.__name__} is compiled by jd.function, where an array has no value yet to branch on or "
                "to convert. Use jnp.where, jax.lax.cond or jax.lax.while_loop, pass the value as a Python number, or "
                f"call {self.__name__}.python_function, which runs eagerly."
            )
            raise
        except Exception as error:
            changed = foreign_write(error, self.__name__)
            if changed is None:
                add_hint(error)
                raise
            raise changed from error
        check_captured(result.closed, self.__name__)
        for variable in (*result.executor.inputs, *result.executor.written):
            followers = getattr(variable, "followers", None)
            if followers is not None:
                followers.add(self)
        self._traces += 1
        if result.executor.created and not first:
            names = ", ".join(variable.name for variable in result.executor.created)
            raise VariableError(
                f"{self.__name__} created variables ({names}) when it was traced again. HINT: a jd.function may "
                "create variables on its first call only; create them outside, or once: `if self.v is None: ...`."
            )
        return result

    def _note_numbers(self, signature: Signature) -> None:
        """Says once that a function is compiled again for every new number."""
        numbers = [as_given(value) for _, kind, value in signature.statics if kind in (int, float, complex)]
        if not numbers:
            return
        kinds = signature.tree, tuple((place, kind) for place, kind, _ in signature.statics)
        self._numbers[kinds] = self._numbers.get(kinds, 0) + 1
        if self._numbers[kinds] == _MANY:
            _LOG.warning(
                "%s has been compiled %d times for different Python numbers among its arguments, now %s. HINT: pass "
                "what changes from call to call as an array, e.g. jnp.float32(rate).",
                self.__name__,
                _MANY,
                numbers,
            )

    def __repr__(self) -> str:
        return f"<jd.function {self.__name__}, traced {self._traces} times>"


def _laid_out(first: Capture, leaves: Sequence[Any]) -> Capture:
    """A function's first program, of which strategies may have taken how its variables are to lie."""
    touched = (*first.executor.inputs, *first.executor.written)
    for strategy in dict.fromkeys(value.distribute_strategy for value in touched if isinstance(value, Variable)):
        strategy.extended.lay_out(first, leaves)
    return first


def _unbound() -> None:
    """Stands for a method's compiled programs in a pickled object: they are made again if they are needed."""


_MANY = 8
"""Programs that differ in numbers alone before it is said that arrays would need only one."""


@overload
def function(
    func: Callable[P, R], *, input_signature: Any = None, donate_argnums: int | Sequence[int] = ()
) -> Function[P, R]: ...
@overload
def function(
    func: None = None, *, input_signature: Any = None, donate_argnums: int | Sequence[int] = ()
) -> Callable[[Callable[P, R]], Function[P, R]]: ...
def function(func: Any = None, *, input_signature: Any = None, donate_argnums: int | Sequence[int] = ()) -> Any:
    """Compiles a function that reads and writes variables into one XLA program.

    The function is traced once for each signature: the structure of its arguments, the shapes and dtypes of
    arrays, and the values of all other arguments (numbers, strings, variables and any hashable object are
    *static*; pass arrays for what changes from call to call). The variables that it touches become inputs of
    the program, those that it writes are donated and rebound. `strategy.run` inside it becomes one
    `jax.shard_map` over the replicas.

    Args:
      func: the function; without it a decorator is returned.
      input_signature: one nest of specs for each argument that it must fit: `jd.ArraySpec`, with None for a
        dimension of any size, `jax.ShapeDtypeStruct`, or a distributed dataset's `element_spec`. Numbers become
        arrays of the spec's dtype, so that new ones do not retrace.
      donate_argnums: positions of arguments, such as a state that the function returns again, whose arrays it may
        overwrite; they cannot be used afterwards. Variables that it writes are donated in any case.

    Returns:
      A function with the same arguments and results. Numbers that it returns come back as arrays.

    Raises:
      ArgumentTypeError: (when called) an argument that is neither an array nor hashable.
      ArgumentError: (when called) an argument that does not fit `input_signature`, or integers of 64 bits that do not
        fit into the 32 that JAX has by default.
      VariableError: (when called) variables are created on a later call than the first, or the function closes over
        a module of Flax NNX or Equinox, whose arrays would be constants.

    If the function raises, no variable has changed.

    Examples:
      >>> count = jd.Variable(0)
      >>> @jd.function
      ... def step(x):
      ...     count.assign_add(1)
      ...     return x * 2
      >>> step(jnp.float32(3)), int(count)
      (Array(6., dtype=float32), 1)

    Source: `tf.function`; `donate_argnums` as in `jax.jit`.
    """
    several = not isinstance(donate_argnums, int)
    listed = settings.sequence("donate_argnums", donate_argnums) if several else (donate_argnums,)
    donated = tuple(settings.whole("donate_argnums", place) for place in listed)
    if func is None:
        return lambda func: Function(func, input_signature, donated)
    return Function(settings.function("func", func), input_signature, donated)
