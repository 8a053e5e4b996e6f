"""Workers compare what their programs have fixed, when each is made: one that differs would train something else."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxtribute._src.jaxprs.core import ClosedJaxpr
from jaxtribute._src.jaxprs.fixed import Fixed, fixed_values, value_in_words
from jaxtribute._src.values.agreement import exchanged
from jaxtribute.errors import ClusterError

if TYPE_CHECKING:
    from jaxtribute._src.types import Function, Nest
    from jaxtribute._src.values.mesh import Peers, ReplicaMesh

_HOSTED = (np.ndarray, np.generic)
_TOLD = 200
"""Number of values that a worker tells of at most."""


def compare_programs(name: str, program: ClosedJaxpr, peers: Peers) -> None:
    """Checks that all workers have fixed the same values in a program that is to run on the replicas of all.

    Args:
      name: the function's name.
      program: the traced function.
      peers: the workers; all must call it, each with its own trace of the function.

    Raises:
      ClusterError: they have not; it names workers, values and lines.
    """
    _compare(name, list(fixed_values(program)), peers, "values that the function reads from around it")


def compared(fn: Function, name: str, mesh: ReplicaMesh) -> Function:
    """A function to be compiled, whose programs all workers compare as they are made.

    Args:
      fn: a function of arrays.
      name: what it is, for messages.
      mesh: the replicas' devices.
    """
    peers = mesh.peers
    if peers is None:
        return fn

    def program(*args: Nest) -> Any:
        compare_programs(name, jax.make_jaxpr(fn)(*args), peers)
        return fn(*args)

    return program


def compare_arguments(name: str, leaves: Sequence[Any], peers: Peers) -> None:
    """Checks that what is given to a program as one array for all replicas is the same on all workers.

    Args:
      name: the function's name.
      leaves: the arrays of its arguments.
      peers: the workers; all must call it.

    Raises:
      ClusterError: it is not.
    """
    found = [(text, "the call") for text in own_arguments(leaves)]
    _compare(name, found, peers, "arguments that are no distributed values")


def own_arguments(leaves: Sequence[Any]) -> list[str]:
    """Lists, in words, the arrays among arguments that each worker has of its own."""
    found: list[str] = []
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, _HOSTED) or (isinstance(leaf, jax.Array) and leaf.is_fully_addressable):
            found.append(f"array {place} of the arguments, {value_in_words(leaf)}")
    return found


def _compare(name: str, found: Sequence[Fixed], peers: Peers, what: str) -> None:
    # In no order: a program may be put together by way of a set, whose order differs from process to process.
    texts = sorted(text for text, _ in found)
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    if len(set(exchanged(peers, f"the first run of {name}", digest))) == 1:
        return
    # All workers have seen that they differ, so all come here.
    told = [Counter({(text, line): count for text, line, count in one}) for one in exchanged(peers, name, _list(found))]
    other = next(rank for rank, one in enumerate(told) if _texts(one) != _texts(told[0]))
    lines: list[str] = []
    for rank, beside in ((0, other), (other, 0)):
        rest = _texts(told[rank]) - _texts(told[beside])
        own = [f"{text}, at {line}" for text, line in told[rank] if text in rest]
        lines.append(f"  worker {rank}: {'; '.join(own[:3]) or 'nothing in their place'}")
    raise ClusterError(
        f"the workers have made {name} with different {what}:\n" + "\n".join(lines) + "\nHINT: compute them alike on "
        "all workers, or pass them as a distributed value, e.g. of "
        "strategy.experimental_distribute_values_from_function."
    )


def _list(found: Sequence[Fixed]) -> list[Any]:
    return [[*entry, count] for entry, count in list(Counter(found).items())[:_TOLD]]


def _texts(entries: Counter[Fixed]) -> Counter[str]:
    """How often each value occurs, whatever its line."""
    texts: Counter[str] = Counter()
    for (text, _), count in entries.items():
        texts[text] += count
    return texts
