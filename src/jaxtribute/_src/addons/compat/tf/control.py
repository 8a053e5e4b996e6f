"""Branches and loops that arrays decide: `tf.cond`, `tf.case`, `tf.switch_case` and `tf.while_loop`.

What they write to variables, JAX's own functions would not let out: it is carried along, and written after them. What
they write is found by tracing them once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxtribute import Variable, VariableSynchronization
from jaxtribute._src.addons.compat.tf.conversion import as_tensor
from jaxtribute.errors import ArgumentError, TraceError
from jaxtribute.extending import Context, Nests, Overlay, Tracer, check_untraced, operand
from jaxtribute.typing import Array, ArrayLike, Nest

__all__ = ["case", "cond", "switch_case", "while_loop"]

Branch = Callable[[], Any]


def cond(pred: ArrayLike, true_fn: Branch, false_fn: Branch, name: str | None = None) -> Any:
    """Calls one of two functions; in a compiled program both are compiled, and may write variables.

    Source: `tf.cond`.
    """
    pred = operand(pred)
    # Otherwise the value is known, and one branch runs as Python, with its effects.
    if isinstance(pred, Tracer):
        return _chosen(jnp.asarray(pred, jnp.int32), [false_fn, true_fn])
    return true_fn() if pred else false_fn()


def switch_case(
    branch_index: ArrayLike, branch_fns: Any, default: Branch | None = None, name: str | None = "switch_case"
) -> Any:
    """Calls one of several functions by its number, as `cond`; `default`, or the last one, for any other number.

    Args:
      branch_index: the number.
      branch_fns: the functions, in a list, or with their numbers in a dictionary or a list of pairs.
      default: the function for other numbers.
      name: accepted for compatibility.

    Raises:
      ArgumentError: the numbers are not 0, 1 and so on.

    Source: `tf.switch_case`.
    """
    pairs = branch_fns.items() if isinstance(branch_fns, dict) else branch_fns
    pairs = [pair if isinstance(pair, tuple) else (place, pair) for place, pair in enumerate(pairs)]
    numbered: dict[int, Branch] = dict(pairs)
    if sorted(numbered) != list(range(len(pairs))) or not pairs:
        raise ArgumentError(f"switch_case: branches of {sorted(numbered)}. HINT: number them 0, 1, 2 and so on.")
    branches: list[Branch] = [numbered[number] for number in range(len(pairs))]
    branches.append(branches[-1] if default is None else default)
    index, last = operand(branch_index), len(branches) - 1
    if isinstance(index, Tracer):
        return _chosen(jnp.where((index >= 0) & (index < last), index, last), branches)
    return branches[int(index) if 0 <= int(index) < last else last]()


def case(
    pred_fn_pairs: Sequence[tuple[ArrayLike, Branch]],
    default: Branch | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str | None = "case",
) -> Any:
    """Calls the function of the first condition that holds, as `cond`; else `default`, or the last one.

    Source: `tf.case`.
    """
    *before, (pred, function) = pred_fn_pairs
    chosen: Branch = function if default is None else _decided(pred, function, default)
    for pred, function in reversed(before):
        chosen = _decided(pred, function, chosen)
    return chosen()


def _decided(pred: ArrayLike, function: Branch, other: Branch) -> Branch:
    return lambda: cond(pred, function, other)


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Sequence[Any],
    shape_invariants: Nest = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    maximum_iterations: int | None = None,
    name: str | None = None,
) -> Any:
    """Calls `body` on the loop's variables while `cond` says so; their shapes and types must stay.

    Both may read `tf.Variable`s, and `body` may write them. What tells TensorFlow how to run the loop is accepted, and
    changes nothing. The result is a list or tuple, as `loop_vars` is.

    Source: `tf.while_loop`.
    """

    def goes_on(count: Array, values: list[Any]) -> Any:
        more = jnp.asarray(operand(cond(*values)))
        return more if maximum_iterations is None else jnp.logical_and(more, count < maximum_iterations)

    def step(count: Array, values: list[Any]) -> Any:
        result = body(*values)
        # A body of one variable may return its value without a list around it.
        return count + 1, list(map(as_tensor, result if isinstance(result, (list, tuple)) else [result]))

    writes = _Writes()
    start = (jnp.int32(0), list(map(as_tensor, loop_vars)))
    writes.look(lambda: step(*start))

    def next_state(state: Any) -> Any:
        (count, values), held = state
        return writes.within(lambda: step(count, values), held)

    def is_not_last(state: Any) -> Any:
        (count, values), held = state
        return writes.within(lambda: goes_on(count, values), held)[0]

    (_, values), new = jax.lax.while_loop(is_not_last, next_state, (start, writes.now()))
    writes.finish(new)
    if isinstance(loop_vars, tuple):
        make: Any = getattr(loop_vars, "_make", tuple)  # a named tuple stays one
        return make(values)
    return values


def _chosen(index: Array, branches: Sequence[Branch]) -> Any:
    """The result of the branch of that number, whose writes are made."""
    writes = _Writes()

    # As arrays, since JAX wants the same types from all branches.
    def as_arrays(branch: Branch) -> Branch:
        return lambda: Nests.map_leaves(as_tensor, branch())

    functions = list(map(as_arrays, branches))
    for function in functions:
        writes.look(function)

    def carried(function: Branch) -> Callable[[list[Any]], Any]:
        return lambda held: writes.within(function, held)

    result, new = jax.lax.switch(index, list(map(carried, functions)), writes.now())
    writes.finish(new)
    return result


class _Writes:
    """The variables that branches or a loop's body write, and their values on the way."""

    def __init__(self) -> None:
        self._context = Context.current()
        self._variables: list[Variable] = []

    def look(self, function: Branch) -> None:
        """Traces a function, only to see what it writes."""
        jax.eval_shape(lambda: self._run(function, {})[0])

    def now(self) -> list[Any]:
        """The values that the variables have."""
        return list(map(self._context.executor.get, self._variables))

    def within(self, function: Branch, held: list[Any]) -> tuple[Any, list[Any]]:
        """The result of a function where the variables have the values `held`, and the values that they have then."""
        result, written = self._run(function, dict(zip(self._variables, held, strict=True)))
        new = [jnp.asarray(written.get(one, old), old.dtype) for one, old in zip(self._variables, held, strict=True)]
        return result, new

    def finish(self, values: list[Any]) -> None:
        """Writes the values, where the program itself could have written them."""
        executor = self._context.executor
        for variable, value in zip(self._variables, values, strict=True):
            if not (executor.traced or executor.differentiating):
                check_untraced(variable)
            executor.set(variable, value)

    def _check(self, variable: Variable) -> None:
        """Refuses writes for which replicas would have to meet: they may not all take the branch.

        Raises:
          TraceError: the replicas write a value that they share.
        """
        own = variable.synchronization is VariableSynchronization.ON_READ
        if own or self._context.replica is None or self._context.strategy.num_replicas_in_sync == 1:
            return
        raise TraceError(
            f"{variable.name} is assigned in a branch of tf.cond, tf.case or tf.switch_case or in tf.while_loop, which "
            "replicas may take differently. HINT: decide outside of the replicas' function, "
            "tf.cond(pred, lambda: strategy.run(f), lambda: None), or assign what it returns, "
            "v.assign(tf.cond(pred, lambda: new, v.read_value)). Draw random numbers before it."
        )

    def _run(self, function: Branch, held: dict[Variable, Any]) -> tuple[Any, dict[Variable, Any]]:
        here = self._context
        overlay = Overlay(here.executor, {variable: (value, None) for variable, value in held.items()})
        with Context.entered(Context(here.strategy, here.replica, overlay)):
            result = function()
        for variable in overlay.written:
            if variable not in self._variables:
                self._check(variable)
                self._variables.append(variable)
        return result, overlay.written
