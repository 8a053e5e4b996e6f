"""A compiled step over variables on servers: one pull from each server, one XLA program, one push to each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxtribute import Variable
from jaxtribute._src.addons.parameter_servers.server.client import Exchange, pulled
from jaxtribute._src.addons.parameter_servers.variables.access import Access, Gather
from jaxtribute._src.addons.parameter_servers.variables.operations import Rows
from jaxtribute.errors import TraceError
from jaxtribute.extending import Capture, Literal, Programs, ReplicaMesh, Var


class ServerProgram:
    """A function compiled for one structure of arguments, over all their shapes; what `Program` is elsewhere.

    Args:
      first: the function as traced for the first shapes.
      retrace: traces it for others.
      home: the device to run on.
      rest: accepted, as `Program` takes it: nothing is donated or repeated.
    """

    def __init__(
        self,
        first: Capture,
        retrace: Callable[[Sequence[Any]], Capture],
        home: ReplicaMesh | None,
        *rest: Any,
    ) -> None:
        self._retrace, self._home = retrace, home or first.executor.home
        self._first: Capture | None = first
        self._steps: dict[Any, Step] = {}

    def __call__(self, leaves: Sequence[Any], within: object = None) -> Any:
        """Runs one step; what it sends to servers is no part of an eager step `within`."""
        # Traced by shape: what a step pulls, such as how many rows, is part of its requests.
        shapes = tuple((np.shape(leaf), getattr(leaf, "dtype", None)) for leaf in leaves)
        step = self._steps.get(shapes)
        if step is None:
            # The first trace is of this call's own shapes; for others the function is traced again.
            capture, self._first = self._first or self._retrace(leaves), None
            step = self._steps[shapes] = Step(capture, self._home)
        return step(leaves)


class Step:
    """A traced function with its requests.

    Args:
      capture: the trace.
      home: the device to run on.
    """

    def __init__(self, capture: Capture, home: ReplicaMesh | None) -> None:
        executor = capture.executor
        jaxpr = Programs.opened(capture.closed)
        self._home, self._capture = home, capture
        inputs: list[Any] = list(executor.inputs)
        own = len(jaxpr.invars) - len(inputs) - executor.fed
        where = {id(entry): jaxpr.invars[own + i] for i, entry in enumerate(inputs)}
        outputs = dict(zip(executor.written, jaxpr.outvars[capture.tree.num_leaves :], strict=True))
        lookups = [entry for entry in inputs if isinstance(entry, Rows)]
        leaves = [*jaxpr.invars[:own], *jaxpr.invars[own + len(inputs) :]]
        self._ids = _IdProgram(capture.closed, leaves, [outputs[rows.ids] for rows in lookups])
        self._operations = list(executor.operations)
        parts = [part for operation in self._operations for part in operation.parts]
        self._plain: list[Variable] = [entry for entry in executor.written if isinstance(entry, Variable)]
        wanted = [*jaxpr.outvars[: capture.tree.num_leaves]]
        wanted += [outputs[entry] for entry in (*parts, *self._plain)]
        # A variable that is only written, or whose rows alone are read, must not be pulled whole.
        small, used = Programs.pruned(capture.closed, wanted)
        taken = list(itertools.compress(jaxpr.invars, used))
        order = self._note_inputs(inputs, leaves, where, taken)
        self._note_sources(lookups)
        # Not JAX's own function of the program: its inputs come in another order.
        run, places = Programs.as_function(small), list(map(order.index, taken))
        self._jitted: Any = jax.jit(lambda *given: run(*(given[place] for place in places)))
        self._access = _access(self._inputs, self._operations)
        self._count = capture.tree.num_leaves
        self._age = 0
        """Age of this run's values, in pushes."""

    def _note_inputs(
        self, inputs: Sequence[Any], leaves: Sequence[Var], where: Mapping[int, Var], taken: Sequence[Var]
    ) -> list[Var]:
        """Notes which inputs and leaves the cut program takes; returns its inputs in the order of passing them.

        Args:
          inputs: the variables and rows that the trace reads.
          leaves: the trace's inputs that are the caller's leaves.
          where: the trace's inputs that are those of `inputs`, by their ids.
          taken: its inputs that the cut program takes.
        """
        kept = set(map(id, taken))
        order: list[Var] = []
        self._inputs: list[Any] = []
        self._leaf_places: list[int] = []
        for entry in inputs:
            var = where[id(entry)]
            if id(var) in kept:
                self._inputs.append(entry)
                order.append(var)
        for i, var in enumerate(leaves):
            if id(var) in kept:
                self._leaf_places.append(i)
                order.append(var)
        return order

    def _note_sources(self, lookups: Sequence[Rows]) -> None:
        """Notes which inputs are pulled whole, and which are rows, each with its place among all `lookups`."""
        self._lookups: list[Rows] = []
        self._lookup_places: list[int] = []
        self._pulled: list[Any] = []
        for entry in self._inputs:
            if isinstance(entry, Rows):
                self._lookups.append(entry)
                self._lookup_places.append(lookups.index(entry))
            elif isinstance(entry, Variable) and entry.policy.remote:
                self._pulled.append(entry)

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """Pulls, runs, pushes."""
        access = self._access
        if access is None:
            return self._result(self._compute([], leaves))
        # The values that a client has pulled are shared by the threads of its process.
        with access.client.lock:
            values = self._fetch(access, leaves)
            outputs = self._compute(values, leaves)
            self._push(access, outputs)
        return self._result(outputs)

    def _fetch(self, access: Access, leaves: Sequence[Any]) -> list[Any]:
        """The values of all inputs that are on servers."""
        ids = self._ids(leaves, self._lookup_places) if self._lookups else []
        age = access.take_ready(self)
        self._age = age or 0
        exchange = Exchange(access.client)
        if age is None:
            for variable in self._pulled:
                exchange.pull(variable.layout)
        gathers: list[Gather] = []
        for rows, where in zip(self._lookups, ids, strict=True):
            gathers.append(Gather(exchange, rows.variable.layout, where, padded=rows.padded))
        answers = access.run(exchange)
        found = iter(gathers)
        values: list[Any] = []
        for entry in self._inputs:
            if isinstance(entry, Rows):
                values.append(next(found).result(answers))
            else:
                values.append(self._value(access, entry))
        return values

    def _value(self, access: Access, variable: Any) -> Any:
        if not variable.policy.remote:
            return variable.peek()
        return pulled(access.client, variable.layout)

    def _compute(self, values: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        if self._access is None:
            values = [entry.peek() for entry in self._inputs]
        arguments = [*values, *(leaves[i] for i in self._leaf_places)]
        if self._home is None:
            return self._jitted(*arguments)
        with jax.default_device(self._home.devices[0]):
            return self._jitted(*arguments)

    def _push(self, access: Access, outputs: Sequence[Any]) -> None:
        if not self._operations:
            return
        exchange = Exchange(access.client)
        given = iter(outputs[self._count :])
        for operation in self._operations:
            operation.add_to(exchange, [np.asarray(next(given)) for _ in operation.parts])
        # The pull for the next run of the same step rides on this push: one request to each server a step, rather than
        # two.
        more = access.follows(self._age)
        if more:
            for variable in self._pulled:
                exchange.pull(variable.layout)
        access.run(exchange)
        access.make_ready(self, 0 if more else self._age + 1)

    def _result(self, outputs: Sequence[Any]) -> Any:
        # They stand behind the results and what goes to the servers.
        for variable, value in zip(self._plain, outputs[len(outputs) - len(self._plain) :], strict=True):
            variable.bind(value)
        return self._capture.result(outputs[: self._count])


class _IdProgram:
    """Rows that a step looks up: arguments as they are, or results of a small program on them.

    Args:
      closed: the whole step.
      leaves: its inputs that are no variables.
      ids: its values that are ids.

    Raises:
      TraceError: ids depend on variables.
    """

    def __init__(self, closed: Programs.Closed, leaves: Sequence[Any], ids: Sequence[Any]) -> None:
        places = {id(var): i for i, var in enumerate(leaves)}
        self._direct = [None if isinstance(var, Literal) else places.get(id(var)) for var in ids]
        self._jitted: Any = None
        if all(place is not None for place in self._direct):
            return
        small, used = Programs.pruned(closed, ids)
        needed = list(itertools.compress(Programs.opened(closed).invars, used))
        if any(id(var) not in places for var in needed):
            raise TraceError(
                "rows are looked up by ids that depend on variables or on other rows, so that they are not known "
                "before the step runs. HINT: compute the ids from the batch alone, or use two steps."
            )
        self._needed = [places[id(var)] for var in needed]
        self._jitted = jax.jit(Programs.as_function(small))

    def __call__(self, leaves: Sequence[Any], wanted: Sequence[int]) -> list[np.ndarray[Any, Any]]:
        """The ids of the lookups in places `wanted`."""
        found: list[Any] = []
        if self._jitted is not None:
            found = self._jitted(*(leaves[i] for i in self._needed))
        results: list[np.ndarray[Any, Any]] = []
        for i in wanted:
            place = self._direct[i]
            results.append(np.asarray(found[i] if place is None or found else leaves[place]))
        return results


def _access(inputs: Sequence[Any], operations: Sequence[Any]) -> Access | None:
    for entry in (*inputs, *operations):
        variable = getattr(entry, "variable", entry)
        access = getattr(getattr(variable, "policy", None), "access", None) or getattr(entry, "access", None)
        if access is not None:
            return access
    return None
