"""Scopes of strategies, and the functions that tell which strategy is in force."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtribute._src.core import context as contexts
from jaxtribute._src.core.context import Context
from jaxtribute._src.core.jaxprs.core import kept_beyond
from jaxtribute._src.core.traced_reads import traced_reads
from jaxtribute.errors import ContextError

if TYPE_CHECKING:
    from jaxtribute._src.core.execution.replica_context import ReplicaContext
    from jaxtribute._src.core.strategies.base import Strategy


class Scope:
    """Context manager of `Strategy.scope`: makes the strategy current inside a `with` block, any number of times."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def __enter__(self) -> Strategy:
        strategy = self._strategy
        contexts.check_enterable(strategy, f"{type(strategy).__name__}.scope()")
        contexts.announce()
        now = contexts.current()
        # The default strategy's scope changes nothing, but is left by a pop as every other.
        contexts.push(now if strategy.is_default else Context(strategy, None, now.executor))
        return strategy

    def __exit__(self, *_: object) -> None:
        if not contexts.depth():
            raise ContextError(
                f"{self._strategy!r}: this thread is in no scope to leave. HINT: with strategy.scope(): ..."
            )
        contexts.pop()


def get_strategy() -> Strategy:
    """Returns the strategy whose scope or `run` the calling thread is in, or the default strategy.

    Examples:
      >>> with jd.MirroredStrategy(2).scope():
      ...     jd.get_strategy()
      <MirroredStrategy with 2 replica(s)>

    Source: `tf.distribute.get_strategy`.
    """
    return _asked().strategy


def has_strategy() -> bool:
    """Returns whether a strategy other than the default one is in force in the calling thread.

    Examples:
      >>> jd.has_strategy()
      False
      >>> with jd.MirroredStrategy(1).scope():
      ...     jd.has_strategy()
      True

    Source: `tf.distribute.has_strategy`.
    """
    return not _asked().strategy.is_default


def in_cross_replica_context() -> bool:
    """Returns whether the code runs once for all replicas: in a scope, but in no replica function.

    Examples:
      >>> with jd.MirroredStrategy(1).scope():
      ...     jd.in_cross_replica_context()
      True

    Source: `tf.distribute.in_cross_replica_context`.
    """
    return _asked().replica is None


def get_replica_context() -> ReplicaContext | None:
    """Returns the context of the replica whose function runs, or None in cross-replica context.

    Outside every scope that is the default strategy's, with one replica.

    Examples:
      >>> def replica():
      ...     context = jd.get_replica_context()
      ...     return context.all_reduce("SUM", jnp.float32(1))
      >>> float(jd.MirroredStrategy(2).run(replica))
      2.0

    Source: `tf.distribute.get_replica_context`.
    """
    return _asked().replica


def _asked() -> Context:
    """The context in force, which becomes part of a function that JAX keeps traced if one asks for it."""
    context = contexts.current()
    if kept_beyond(getattr(context.executor, "trace", None)):
        traced_reads.note_context()
        contexts.show()
    return context


def experimental_set_strategy(strategy: Strategy | None) -> None:
    """Makes a strategy current in the calling thread, without a `with`; None restores the default one.

    Raises:
      ContextError: inside a scope or a replica function.

    Examples:
      >>> jd.experimental_set_strategy(jd.MirroredStrategy(2))
      >>> jd.get_strategy().num_replicas_in_sync
      2
      >>> jd.experimental_set_strategy(None)

    Source: `tf.distribute.experimental_set_strategy`.
    """
    if contexts.depth():
        raise ContextError(
            f"experimental_set_strategy({strategy!r}) was called inside a scope or a replica function of "
            f"{type(contexts.current().strategy).__name__}. HINT: call it at the top level of the program."
        )
    old = contexts.base()
    # Taken away before the new one is made: its executor is that of code outside every strategy.
    contexts.set_base(None)
    if strategy is None or strategy.is_default:
        return
    try:
        contexts.announce()
        contexts.set_base(Context(strategy, None, contexts.current().executor))
    except BaseException:
        contexts.set_base(old)
        raise
