"""The collective ledger: before each program that spans workers, they compare what they are about to do.

Two processes that call collectives in different order get wrong results, or hang. With `JAXTRIBUTE_DEBUG=collectives`
or `jd.config.debug_collectives(True)` such programs end in an error that names both workers and both source lines.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from jaxtribute._src.core import settings
from jaxtribute._src.core.callers import caller
from jaxtribute._src.core.environment import reader, words
from jaxtribute.errors import ClusterError

if TYPE_CHECKING:
    from jaxtribute._src.core.cluster.runtime import Cluster

DEBUG = "JAXTRIBUTE_DEBUG"
_WORDS = frozenset({"collectives"})

_chosen: bool | None = None
"""Last argument of `debug_collectives`; None if the environment decides."""


def debug_collectives(enabled: bool) -> None:
    """Switches the collective ledger on or off, on every worker alike.

    With it, workers compare the name, order, shapes and dtypes of their collectives, and the source lines that call
    them, before each program that spans them. It costs a few milliseconds a call.

    Args:
      enabled: whether they compare.

    Raises:
      ArgumentTypeError: neither True nor False.
    """
    global _chosen
    _chosen = settings.flag("enabled", enabled)


def enabled() -> bool:
    """True if workers compare. Each step asks."""
    return _by_environment() if _chosen is None else _chosen


_asked = reader(DEBUG, functools.partial(words, DEBUG, _WORDS))


@functools.cache
def _by_environment() -> bool:
    """Read once: that costs more than all else of a ledger that is off."""
    return "collectives" in _asked()


def compare(cluster: Cluster, name: str, collectives: Sequence[str]) -> None:
    """Checks that all workers are about to run the same program.

    Args:
      cluster: the workers.
      name: what this worker is about to do.
      collectives: the collectives in it, in order.

    Raises:
      ClusterError: one does something else; it names both and their lines.
    """
    digest = hashlib.sha256("\n".join(collectives).encode()).hexdigest()
    step = cluster.steps.place
    told = list(map(json.loads, cluster.exchange("the ledger", json.dumps([name, caller(), digest]), at=step)))
    # The line of the call does not count: workers may come to one program by different lines.
    programs = [(name, digest) for name, _, digest in told]
    if len(set(programs)) == 1:
        return
    # The lists are long, so they are told only if the digests differ: on all workers, as all have seen the same.
    lists = list(map(json.loads, cluster.exchange("the ledger's lists", json.dumps(list(collectives)), at=step)))
    # The first worker that differs from worker 0: every worker names the same two.
    other = next(rank for rank, program in enumerate(programs) if program != programs[0])
    pair = (0, other)
    lines = [f"  {cluster.names[rank]}: {told[rank][0]}, called at {told[rank][1]}" for rank in pair]
    for place, texts in enumerate(zip_longest(lists[0], lists[other], fillvalue="none")):
        if texts[0] != texts[1]:
            for rank, text in zip(pair, texts, strict=True):
                lines.append(f"  collective {place} of {cluster.names[rank]}: {text}")
            break
    raise ClusterError(
        "the workers are about to run different collectives:\n"
        + "\n".join(lines)
        + "\nHINT: every worker must make the same calls in the same order with the same shapes."
    )
