"""Workers compare what their programs have fixed, when each is made: one that differs would train something else."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxtribute._src.core.jaxprs.core import ClosedJaxpr
from jaxtribute._src.core.jaxprs.fixed import Fixed, fixed_values, value_in_words
from jaxtribute._src.core.values.agreement import exchanged
from jaxtribute.errors import ClusterError

if TYPE_CHECKING:
    from jaxtribute._src.core.types import Function, Nest
    from jaxtribute._src.core.values.mesh import Peers, ReplicaMesh

_HOSTED = (np.ndarray, np.generic)
_TOLD = 5000
"""Number of values that a worker tells of at most, once they are known to differ."""
_SHOWN = 3
"""Number of a worker's values that are shown."""


def compare_programs(name: str, program: ClosedJaxpr, mesh: ReplicaMesh | None, leaves: Sequence[Any] = ()) -> None:
    """Checks that all workers have fixed the same values in a program that is to run on the replicas of all.

    Args:
      name: the function's name.
      program: the traced function.
      mesh: the replicas' devices, if it runs on several; all their workers must call it, each with its own trace.
      leaves: the arrays of its arguments. Those that are no distributed values must be the same, too.

    Raises:
      ClusterError: they have not; it names workers, values and lines.
    """
    if mesh is None or mesh.peers is None:
        return
    arguments: list[Fixed] = [(text, "the call") for text in own_arguments(leaves)]
    _compare(name, [*fixed_values(program), *arguments], [str(aval) for aval in program.in_avals], mesh.peers)


def compared(fn: Function, name: str, mesh: ReplicaMesh) -> Function:
    """A function to be compiled, whose programs all workers compare as they are made.

    Args:
      fn: a function of arrays.
      name: what it is, for messages.
      mesh: the replicas' devices.
    """
    if mesh.peers is None:
        return fn

    def program(*args: Nest) -> Any:
        compare_programs(name, jax.make_jaxpr(fn)(*args), mesh)
        return fn(*args)

    return program


def own_arguments(leaves: Sequence[Any]) -> list[str]:
    """Lists, in words, the arrays among arguments that each worker has of its own."""
    described: list[str] = []
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, _HOSTED) or (isinstance(leaf, jax.Array) and leaf.is_fully_addressable):
            described.append(f"array {place} of the arguments, {value_in_words(leaf)}")
    return described


def _compare(name: str, arrays: Sequence[Fixed], inputs: Sequence[str], peers: Peers) -> None:
    # In no order: a program may be put together by way of a set, whose order differs from process to process.
    digest = hashlib.sha256("\n".join(sorted(text for text, _ in arrays)).encode()).hexdigest()
    digests = exchanged(peers, f"the first run of {name}", digest)
    if len(set(digests)) == 1:
        return
    # All workers have seen that they differ, so all come here.
    forms, told = zip(*exchanged(peers, f"the values of {name}", [inputs, arrays[:_TOLD]]), strict=True)
    other = next(rank for rank, one in enumerate(digests) if one != digests[0])
    if forms[0] != forms[other]:  # as then most else does
        both = "".join(f"\n  worker {rank}: {', '.join(forms[rank])}" for rank in (0, other))
        raise ClusterError(
            f"the workers call {name} with arguments, or variables, of other shapes or dtypes:{both}\n"
            "HINT: give all batches of one size and dtype, keys of one kind, and the same variables and optimizers."
        )
    lines: list[str] = []
    for rank, beside in ((0, other), (other, 0)):
        rest = Counter(text for text, _ in told[rank]) - Counter(text for text, _ in told[beside])
        own = [f"{text}, at {line}" for text, line in told[rank] if text in rest]
        lines.append(f"  worker {rank}: {'; '.join(own[:_SHOWN]) or 'nothing in their place'}")
    raise ClusterError(
        f"the workers have made {name} of different operations, or with different values, of constants or of "
        "arguments that are no distributed values:\n" + "\n".join(lines) + "\nHINT: run the same code on all workers, "
        "and compute values alike, or pass them as a distributed value, e.g. of strategy."
        "experimental_distribute_values_from_function."
    )
