"""Runs a user's step on virtual replicas: the function is the user's own, its strategy has another number of replicas.

Everything is one process and one device. What `strategy.run` is given is traced once for each shape of a replica's
rows and evaluated for all replicas side by side, in float64; the code around runs as Python. The variables stay as
they are: what the step writes is kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import Mirrored, PerReplica, ReduceOp, Variable
from jaxtribute._src.addons.verify.arrangements import Arrangement
from jaxtribute._src.addons.verify.holding import is_rows, means_by_rows, rows_for, total_of
from jaxtribute._src.addons.verify.machine import CannotVerify, Key, Machine, Record, Tape, together
from jaxtribute._src.addons.verify.meeting import Draws, meet
from jaxtribute._src.addons.verify.operations import as_wide, is_key
from jaxtribute._src.addons.verify.running import Run
from jaxtribute._src.addons.verify.sources import Place, calling_place
from jaxtribute.extending import Context, Executor, Function, Nests
from jaxtribute.typing import Function as Callee
from jaxtribute.typing import Nest


@dataclass(slots=True, eq=False)
class Outcome:
    """The results and writes of a step on some replicas.

    Attributes:
      arrangement: the replicas.
      outputs: what it returned, by path: an array of float64, or a tuple with one for each replica.
      written: the new values of variables; those with a row for each replica are such rows.
      tapes: what each replica has computed, if it was kept.
      repeated: records of draws that gave all replicas the same numbers for different rows.
      rounded: True if code around the replicas computed in 32 bits.
      exact: how many operations each replica had computed before; None if it did not.
      ran: True if replicas ran.
      lines: by variable the line of the last write within a replica.
      inner: by variable what that write has left.
      lost: what could not be followed, in words.
      shared: True if replicas were given values of their own, such as the rows of a batch.
      private: True if replicas have drawn, of keys of their own, as many numbers as one device.
      losses: lines that differentiate a loss by variables.
      wholes: lines that give all replicas one array that is no state.
    """

    arrangement: Arrangement
    outputs: dict[str, Any] = field(default_factory=dict)
    written: dict[Variable, Any] = field(default_factory=dict)
    tapes: list[Tape] = field(default_factory=list)
    repeated: list[Record] = field(default_factory=list)
    rounded: bool = False
    exact: int | None = None
    ran: bool = False
    lines: dict[Variable, Place] = field(default_factory=dict)
    inner: dict[Variable, Any] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    shared: bool = False
    private: bool = False
    losses: list[Place] = field(default_factory=list)
    wholes: list[Place] = field(default_factory=list)


class Stage(Executor):
    """Runs one step, once.

    Args:
      strategy: the user's strategy.
      arrangement: the replicas that stand for its own.
      state: what each variable holds, in float64.
      draws: the random numbers of one device with the whole batch; they are noted if this is that run.
      folded: the loops that are kept as one operation; None to keep nothing of what is computed.
    """

    def __init__(
        self,
        strategy: Any,
        arrangement: Arrangement,
        state: dict[Variable, Any],
        draws: Draws,
        folded: frozenset[int] | None = None,
    ) -> None:
        self._strategy, self._state, self._draws = strategy, state, draws
        self._wide: dict[int, Any] = {}
        self._alive: list[Any] = []
        self.batch = 0
        """Number of rows of the program's own batch."""
        self.traces: dict[Any, Any] = {}
        """The programs of replicas that earlier runs have traced."""
        self.placed: set[int] = set()
        """Ids of arrays that the program has given to all replicas."""
        self.changed: Sequence[Mapping[Key, Any]] = [{}] * arrangement.replicas
        """For each replica the numbers that are others than what it computes."""
        tapes = [Tape(folded is not None, folded=folded or frozenset()) for _ in arrangement.sizes]
        self.found = Outcome(arrangement, tapes=tapes)

    # Arrays for the code around the replicas, which knows nothing of float64.

    def _shown(self, value: Any, dtype: Any) -> Any:
        """A value as the code around sees it."""
        if is_key(value):
            return value
        with np.errstate(all="ignore"):
            array = jax.device_put(np.asarray(value, dtype))
        self._wide[id(array)] = value
        self._alive.append(array)
        return array

    def _exact(self, value: Any) -> Any:
        """The value in float64 that stands behind an array of the code around."""
        known = self._wide.get(id(value))
        if known is None:
            known = as_wide(value)
            # What is no operand of the user's was computed of something in 32 bits.
            if not self.found.rounded and getattr(known, "dtype", None) == np.float64:
                self.found.rounded = True
                self.found.exact = min(len(tape.records) for tape in self.found.tapes)
        return known

    def note(self, values: Nest) -> None:
        """Notes arrays that are exact as they are."""
        for leaf in jax.tree.leaves(values):
            if Nests.is_array(leaf) and not is_key(leaf):
                self._wide[id(leaf)] = as_wide(leaf)
                self._alive.append(leaf)

    # Variables.

    @property
    def view(self) -> Any:
        """That of code that runs as Python."""
        return None

    def exact_value(self, variable: Variable) -> Any:
        """Gives the value of a variable: of a variable with a row for each replica, the rows."""
        if variable in self.found.written:
            return self.found.written[variable]
        if variable not in self._state:
            if variable.policy.cut is not None:
                raise CannotVerify(f"{variable.name} lies in slices, and was not known before")
            value = as_wide(np.asarray(variable.stored))
            self._state[variable] = value[None] if is_rows(variable) and variable.policy.form != "rows" else value
        return rows_for(variable, self._state[variable], self.found.arrangement.replicas)

    def get(self, variable: Variable) -> Any:
        """Returns a variable's array."""
        return self._shown(self.exact_value(variable), variable.dtype)

    def set(self, variable: Variable, value: Any) -> None:
        """Keeps a variable's new array."""
        self.found.written[variable] = self._exact(value)

    def derive(self, variable: Variable, make: Callable[[Any], Any]) -> Any:
        """Returns `make` of the variable's array."""
        return make(self.get(variable))

    def create(self, make: Any) -> Variable:
        """Refuses: a step that has run before has its variables."""
        raise CannotVerify(f"{calling_place()} makes a variable in the step")

    def component(self, value: Any, mesh: Any, *, scalar: bool) -> PerReplica:
        """Returns an array that is split over the replicas as a value of them."""
        parts = np.split(np.asarray(value), self.found.arrangement.replicas)
        return PerReplica(tuple(jnp.asarray(part.reshape(()) if scalar else part) for part in parts), mesh)

    # All replicas.

    def reduce(self, strategy: Any, values: Sequence[Any], op: ReduceOp, axis: Any) -> list[Any]:
        """Returns each value reduced over the replicas, and along `axis` within each."""
        return [self._reduced(strategy, value, op, axis) for value in values]

    def _reduced(self, strategy: Any, value: Any, op: ReduceOp, axis: Any) -> Any:
        place = calling_place()
        arrangement = self.found.arrangement
        if isinstance(value, PerReplica):
            shown = list(value.values)
        elif arrangement.replicas == 1:
            shown = [value.data if isinstance(value, Mirrored) else value]
        elif isinstance(value, Mirrored):
            shown = [value.data] * arrangement.replicas
        else:
            return super().reduce(strategy, [value], op, axis)[0]
        parts = list(map(self._exact, shown))
        given = jnp.asarray(shown[0]).dtype
        weighed = self.found.shared and means_by_rows(self._strategy)
        wide = total_of(parts, op, axis, arrangement.idle, arrangement.sizes if weighed else None)
        if wide.dtype.kind in "biu":
            dtype: Any = jnp.int32 if given == np.bool_ else given
        else:
            dtype = given if jnp.issubdtype(given, jnp.inexact) else jnp.float32
        self._note_reduction(parts, wide, op, axis, place)
        return self._shown(wide, dtype)

    def _note_reduction(self, parts: list[Any], wide: Any, op: ReduceOp, axis: Any, place: Any) -> None:
        for tape, part in zip(self.found.tapes, parts, strict=True):
            tape.add(Record(f"strategy.reduce {op.name} axis={axis}", (part,), (wide,), None, place))

    def gather(self, value: Any, axis: int) -> Any:
        """Returns a value concatenated over the replicas along `axis`."""
        shown = list(value.values) if isinstance(value, PerReplica) else [getattr(value, "data", value)]
        parts = list(map(self._exact, shown))
        wide = np.concatenate(parts, axis) if len(parts) > 1 else parts[0]
        place = calling_place()
        for tape, part in zip(self.found.tapes, parts, strict=False):
            tape.add(Record("strategy.gather", (part,), (wide,), None, place))
        return self._shown(wide, jnp.asarray(shown[0]).dtype)

    # The replicas.

    def run(self, fn: Callee, args: Sequence[Any] = (), kwargs: Nest = None) -> Any:
        """Does what `strategy.run` does."""
        self.found.ran = True
        if Context.current().executor is not self:
            raise CannotVerify(f"{calling_place()} differentiates or transforms around strategy.run")
        if isinstance(fn, Function):
            fn = fn.python_function
        run = Run(self, self._strategy, fn, (tuple(args), dict(kwargs or {})))
        return run.results()

    def evaluated(self, traces: Sequence[Any], inputs: Sequence[list[Any]]) -> list[list[Any]]:
        """The results of the replicas' programs."""
        running = [
            Machine(number, tape, self.found.arrangement.factor, changed).begin(closed, given)
            for number, (tape, closed, given, changed) in enumerate(
                zip(self.found.tapes, traces, inputs, self.changed, strict=True)
            )
        ]
        return together(running, lambda meetings: meet(meetings, self.found, self._draws))

    def result(self, value: Any, dtype: Any) -> Any:
        """One result of a replica, for the code around."""
        return self._shown(value, dtype)

    def input_of(self, value: Any) -> Any:
        """One argument of a replica in float64."""
        return value if is_key(value) else self._exact(value)

    def note_results(self, result: Nest) -> None:
        """Keeps what the step has returned."""
        for path, leaf in jax.tree_util.tree_leaves_with_path(result, is_leaf=Nests.is_whole):
            if isinstance(leaf, Variable):
                continue
            name = jax.tree_util.keystr(path)
            if isinstance(leaf, PerReplica):
                self.found.outputs[name] = tuple(map(self.input_of, leaf.values))
            elif isinstance(leaf, Mirrored) or Nests.is_array(leaf):
                self.found.outputs[name] = self.input_of(leaf.data if isinstance(leaf, Mirrored) else leaf)
