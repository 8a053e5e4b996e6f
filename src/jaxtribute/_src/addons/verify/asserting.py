"""`jd.testing.verify`: verifies a step in a test."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from jaxtribute import PerReplica, function
from jaxtribute._src.addons.tools.user_scripts import Finished
from jaxtribute._src.addons.verify.operations import is_key
from jaxtribute._src.addons.verify.report import text
from jaxtribute._src.addons.verify.sources import ASKS, raising, title
from jaxtribute._src.addons.verify.verdict import Verdict
from jaxtribute._src.addons.verify.watching import KINDS, Watcher
from jaxtribute.errors import ArgumentError
from jaxtribute.experimental import observe
from jaxtribute.extending import Function, Nests, slice_sizes
from jaxtribute.typing import Function as Callee
from jaxtribute.typing import Nest


class NotOneDeviceError(AssertionError):
    """A step on replicas is not the step of one device; the message is the report."""


def verify(step: Callee, *batch: Nest, strategy: Any = None, raises: bool = True) -> Verdict:
    """Checks that a step on replicas does what it does on one device with the whole batch.

    The step is traced and evaluated in float64 on two, three and four virtual replicas, for batches that divide, that
    do not, and that leave a replica empty. Nothing runs on devices, and no variable changes.

    Args:
      step: a `jd.function`, or a function that would be one, that calls `strategy.run`.
      batch: its arguments. Batches of a distributed dataset, or, with `strategy`, arrays whose axis 0 has the rows of
        the whole batch: those with as many rows as the first one. What `strategy.place` has placed stays whole.
      strategy: the strategy; needed for plain arrays.
      raises: whether to raise an error if the step differs; otherwise the verdict says so.

    Returns:
      What was found: `right`, `findings`, `unverified`; `str` of it is the report.

    Raises:
      NotOneDeviceError: the step differs from one device for such a batch (an `AssertionError`), or could not be
        verified: nothing was compared, nothing that is trained changes, or what looks like the state of the next call
        differs on each replica. What differs only for batches that replicas share unevenly counts if this one is such.
      ArgumentError: the step runs on no replicas.
    """
    # One of its own: a program that has been traced already does not tell again what it is made of.
    compiled = function(step.python_function if isinstance(step, Function) else step)
    given = batch if strategy is None else _distributed(batch, strategy)
    watcher = _Once(lambda _: None, None)
    try:
        with observe(watcher, *KINDS), contextlib.suppress(Finished):
            compiled(*given)
    except ASKS as error:
        # A step that runs as Python may ask for values, which are not known while it is traced.
        watcher.verdicts.append(Verdict(title(step, "the step"), notes=[raising(error)]))
    if not watcher.verdicts:
        raise ArgumentError(
            f"{title(step, 'the step')} called strategy.run nowhere. HINT: give the jd.function around "
            "it, not the replica function."
        )
    verdict = watcher.verdicts[0]
    if raises and not verdict.right:
        raise NotOneDeviceError(text(verdict))
    return verdict


class _Once(Watcher):
    """Ends the program with the first verdict, before the step runs."""

    def _verify(self, event: Any) -> None:
        super()._verify(event)
        if self.verdicts:
            raise Finished


def _distributed(batch: tuple[Any, ...], strategy: Any) -> tuple[Any, ...]:
    leaves, tree = Nests.flatten(batch)
    count = strategy.num_replicas_in_sync
    if count == 1 or any(isinstance(leaf, PerReplica) for leaf in leaves):
        return batch
    rows = next((len(leaf) for leaf in leaves if Nests.is_array(leaf) and np.ndim(leaf) and not is_key(leaf)), 0)
    bounds = np.cumsum(slice_sizes(rows, count))[:-1]

    def split(leaf: Any) -> Any:
        if not Nests.is_array(leaf) or is_key(leaf) or not np.ndim(leaf) or len(leaf) != rows:
            return leaf
        return PerReplica.from_host(np.split(np.asarray(leaf), bounds), strategy.extended.mesh)

    return tree.unflatten(map(split, leaves))
