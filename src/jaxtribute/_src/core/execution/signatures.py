"""`Signatures`: the programs of a function, one for each signature of a call, and what runs the next call quickly."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import tree_flatten

from jaxtribute._src.core.execution.compiled_step import Unusual
from jaxtribute._src.core.execution.containers import known
from jaxtribute._src.core.execution.feeds import Feed
from jaxtribute._src.core.execution.nests import bundled, leaves_of
from jaxtribute._src.core.jaxprs.core import Tracer
from jaxtribute._src.core.types import Leaf, Nest, Numeric
from jaxtribute._src.core.values.distributed import ReplicaValues
from jaxtribute._src.core.values.numbers import check_cut
from jaxtribute._src.core.values.variable import Variable
from jaxtribute.errors import ArgumentTypeError

if TYPE_CHECKING:
    from jaxtribute._src.core.context import Context
    from jaxtribute._src.core.execution.program import Program
    from jaxtribute._src.core.strategies.base import Strategy

Again = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Runs a program on the arguments of a call as they are; raises `Unusual` if the call is of another program."""
_IN_TURN = 2
"""Number of calls that were not like the call before, after which a function looks at the structure of arguments."""
_PATIENCE = 64
"""Number of such calls after which a function does not expect them to be like any before."""


class Signature(NamedTuple):
    """All that the program of a call depends on, besides the shapes of its arrays.

    Attributes:
      tree: the structure of the arguments.
      statics: the arguments that are no arrays: place, class and value.
      strategy: the strategy in force.
      across_replicas: True in cross-replica context.
      form: changes, since the first trace, of the objects that the function was traced from.
    """

    tree: Any
    statics: tuple[Any, ...]
    strategy: Strategy
    across_replicas: bool
    form: frozenset[Any]

    def places_of(self, arguments: Sequence[int]) -> list[int]:
        """Finds the arrays of some positional arguments among all arrays of the arguments."""
        if not arguments:
            return []
        fixed = {place for place, _, _ in self.statics}
        each = enumerate(self.tree.children()[0].children())
        owners = [place for place, argument in each for _ in range(argument.num_leaves)]
        arrays = [owner for leaf, owner in enumerate(owners) if leaf not in fixed]
        return [place for place, owner in enumerate(arrays) if owner in arguments]


class Signatures:
    """The signatures that a function was called with.

    Most calls are like the call before: `repeated` runs those without a look at their arguments. A function of which
    programs take turns looks at the structure of arguments alone; one whose calls are never alike looks at everything.
    """

    def __init__(self) -> None:
        self.programs: dict[Signature, Callable[..., Any]] = {}
        self.repeated: tuple[Context, Again] | None = None
        """The context of the last call of arrays alone, and what runs its program again."""
        self._in_turn: tuple[Context | None, dict[Any, Again]] = None, {}
        """A context, and by the structure of their arguments what runs each program that takes turns there."""
        self._missed = 0
        """Number of calls that were expected to be like the call before, and were not."""
        self._takes_variables: set[Any] = set()
        """Structures of arguments among which are variables, which the function wants whole."""
        self._form: frozenset[Any] = frozenset()

    def of(self, tree: Nest, statics: tuple[Any, ...], context: Context) -> Signature:
        """Returns the signature of a call."""
        return Signature(tree, statics, context.strategy, context.replica is None, self._form)

    def flatten(self, call: Nest) -> tuple[list[Any], Any]:
        """Returns the leaves of arguments, and their structure; variables are whole if the function wants them so."""
        leaves, tree = tree_flatten(call)
        if self._takes_variables and tree in self._takes_variables:
            leaves, tree = tree_flatten(call, is_whole_variable)
        return leaves, tree

    def wants_variables(self, call: Nest, tree: Nest) -> bool:
        """True if arguments are to be flattened again: to JAX a variable is its value, to the function itself."""
        if tree_flatten(call, is_whole_variable)[1] == tree:
            return False
        self._takes_variables.add(tree)
        return True

    def expect(self, signature: Signature, context: Context, program: Program, call: Any) -> None:
        """Expects that the next call is like this call.

        Args:
          signature: the signature of the call.
          context: the context in force.
          program: the program of the call.
          call: the arguments, as `bundled`.
        """
        again = program.again if self._missed < _PATIENCE else None
        # While the call ran, an object that the function was traced from may have changed.
        if again is None or signature.form is not self._form:
            return
        if self._missed >= _IN_TURN:
            if self._in_turn[0] != context:
                self._in_turn = context, {}
            self._in_turn[1][leaves_of(call)[1]] = again
            again = self._again_in_turn
        self.repeated = context, again

    def _again_in_turn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a step of the program for this structure of arguments."""
        again = self._in_turn[1].get(leaves_of(bundled(args, kwargs))[1])
        if again is None:
            raise Unusual
        return again(args, kwargs)

    def miss(self) -> None:
        """Notes that a call was not as expected."""
        self.repeated = None
        self._missed += 1

    def forget(self) -> None:
        """Expects nothing of the next call, which may be of another program."""
        self.repeated, self._in_turn = None, (None, {})

    def turn(self, change: Hashable) -> None:
        """Notes a change in an object that the function was traced from; the same change again takes it back."""
        self._form = self._form ^ {change}
        self.forget()


class _Exact:
    """A static argument that is equal only to what is the same: `0.0` is not `-0.0`, NaN is NaN.

    Args:
      value: a number, or an object of a dataclass, which is compared field by field.
      told: what tells it from others.
    """

    __slots__ = ("told", "value")

    def __init__(self, value: Any, told: Hashable) -> None:
        self.value, self.told = value, told

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Exact) and self.told == other.told

    def __hash__(self) -> int:
        return hash(self.told if isinstance(self.told, (str, bytes)) else self.value)


def _exact(value: Leaf) -> Any:
    """The static argument as signatures compare it: Python says that `1`, `1.0` and `True` are equal."""
    told = _told(value)
    return value if told is value else _Exact(value, told)


def _told(value: Leaf) -> Any:
    """The part of a value that tells it from all that are no more than equal; the value itself if nothing has to."""
    # Python writes numbers such that they can be read again to the bit.
    if isinstance(value, (float, complex)):
        return float.__repr__(value) if isinstance(value, float) else complex.__repr__(value)
    if isinstance(value, np.generic):
        return value.tobytes()
    kind: Any = type(value)
    if isinstance(value, (tuple, frozenset)):
        return (tuple if isinstance(value, tuple) else frozenset)((type(part), _told(part)) for part in value)
    if not is_dataclass(kind) or kind.__hash__ in (None, object.__hash__):  # each object of the latter is another one
        return value
    parts = (getattr(value, field.name, None) for field in fields(kind) if field.compare and field.hash is not False)
    return (value, *((type(part), _told(part)) for part in parts))


def as_given(value: Leaf) -> Any:
    """Returns the static argument that the user gave."""
    return value.value if isinstance(value, _Exact) else value


class Otherwise:
    """Marks arguments that no program is looked for."""


TRACED = Otherwise()
"""An outer JAX transformation traces them."""
REVEALED = Otherwise()
"""Marks arguments among which JAX now knows a container that it took for a leaf: they are to be flattened again."""


def is_whole_variable(value: Numeric) -> bool:
    """True if `value` is a variable, which an argument keeps being."""
    return isinstance(value, Variable)


def separate(leaves: list[Any], call: Any) -> tuple[list[Any], tuple[Any, ...], list[Feed]]:
    """Splits arguments into arrays, static values, which become part of the signature, and iterators to draw from."""
    dynamic: list[Any] = []
    feeds: list[Feed] = []
    statics: list[Any] = []
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, Tracer):
            return leaves, (TRACED,), []
        if isinstance(leaf, np.ndarray):
            # The program may read the array's memory when the caller has long gone on, and changed it.
            check_cut(leaf, "an argument of a jd.function")
            dynamic.append(leaf.copy())
            continue
        if isinstance(leaf, (jax.Array, np.generic)):
            dynamic.append(leaf)
            continue
        if isinstance(leaf, Feed):
            feeds.append(leaf)
            statics.append((place, Feed, None))
            continue
        try:
            hash(leaf)
        except TypeError:
            if known(leaf, (jax.Array, np.ndarray, ReplicaValues)):
                return leaves, (REVEALED,), []
            path = jax.tree_util.tree_flatten_with_path(call, is_leaf=is_whole_variable)[0][place][0]
            raise ArgumentTypeError(
                f"argument {jax.tree_util.keystr(path)} of type {type(leaf).__name__} is neither an array nor "
                "hashable, so it can be neither an input of the compiled program nor a part of its signature. "
                "HINT: pass an array, or a hashable value; register classes that hold arrays with "
                "jax.tree_util.register_dataclass."
            ) from None
        statics.append((place, type(leaf), _exact(leaf)))
    return dynamic, tuple(statics), feeds
