"""Agreement of a mesh's workers: on the first value of a variable, and on the shapes of a ragged value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from jaxtribute._src.core.jaxprs.core import numbers_of
from jaxtribute._src.core.types import Json, Numeric
from jaxtribute.errors import ShapeError

if TYPE_CHECKING:
    from jaxtribute._src.core.values.mesh import Peers, ReplicaMesh

Signature = tuple[tuple[int, ...], str]
"""Shape and dtype."""


def first_workers(value: Numeric, what: str, mesh: ReplicaMesh, peers: Peers, settings: str = "") -> Any:
    """The value of worker 0. It travels only if another worker's differs.

    Args:
      value: an array, equal in shape and dtype on all workers.
      what: names it in messages.
      mesh: the replicas' devices, over all workers.
      peers: the workers.
      settings: what else must be the same on all workers, in words.

    Raises:
      ShapeError: its shape, dtype or settings differ between workers.
    """
    if numbers_of(value) is not value:
        implementation = jax.random.key_impl(value)
        numbers = first_workers(numbers_of(value), what, mesh, peers, f"{settings} {implementation}")
        return jax.random.wrap_key_data(numbers, impl=implementation)
    host = np.asarray(value)
    kind = f"{host.dtype.name}{list(host.shape)} {settings}".rstrip()
    # Usually the values are equal, as all workers use one seed: a digest tells it without sending them.
    digest = hashlib.sha256(np.ascontiguousarray(host).view(np.uint8).data).hexdigest() if host.size else ""
    kinds, digests = zip(*exchanged(peers, f"the first value of {what}", [kind, digest]), strict=True)
    if len(set(kinds)) > 1:
        raise ShapeError(
            f"the workers create {what} with different shapes, dtypes or settings: {dict(enumerate(kinds))}. "
            "HINT: build the same model on every worker."
        )
    if len(set(digests)) == 1:
        return value
    return _broadcast(host, mesh)


def exchanged(peers: Peers, what: str, own: Json) -> list[Any]:
    """Tells all workers something that JSON can hold, and returns what each tells, in their order.

    Args:
      peers: the workers; all must call it.
      what: names the call, the same on all workers.
      own: what this worker tells.
    """
    return list(map(json.loads, peers.exchange(what, json.dumps(own))))


def agreed_places(numbers: Mapping[int, Any], peers: Peers) -> list[int]:
    """The places of the numbers that all workers have alike.

    Args:
      numbers: Python numbers by their places in a nest.
      peers: the workers; all must call it.
    """
    if not numbers:
        return []
    own = {str(place): repr(number) for place, number in numbers.items()}
    told = exchanged(peers, "numbers that the replicas gave", own)
    return [place for place in numbers if {message.get(str(place)) for message in told} == {own[str(place)]}]


def all_parts(parts: Sequence[Any], mesh: ReplicaMesh) -> list[np.ndarray[Any, Any]]:
    """All replicas' arrays of the host, in their order, from those of the local replicas.

    Args:
      parts: small arrays: they travel as texts. Those of all replicas are given back as they are.
      mesh: the replicas' devices, over all workers; all must call it.
    """
    own = list(map(np.asarray, parts))
    if mesh.peers is None or len(own) == mesh.size:
        return own
    texts = [[str(part.dtype), part.shape, part.tobytes().hex()] for part in own]
    told = exchanged(mesh.peers, "the replicas' numbers", texts)
    # Workers that share replicas tell the same.
    whole = [text for message in told[:: mesh.workers_per_replica] for text in message]
    return [np.frombuffer(bytes.fromhex(data), dtype).reshape(shape) for dtype, shape, data in whole]


def all_signatures(columns: Sequence[Sequence[Any]], what: str, mesh: ReplicaMesh) -> list[list[Signature] | None]:
    """Shape and dtype of every replica's array, from those of the local replicas; one call for many values.

    Args:
      columns: for each value the local replicas' components, or all replicas'.
      what: names the values in messages.
      mesh: the replicas' devices, over all workers.

    Returns:
      For each value the signatures in replica order, or None if not all components are arrays.
    """
    local = [[(part.shape, str(part.dtype)) if isinstance(part, jax.Array) else None for part in c] for c in columns]
    known = mesh.peers is None or (len(columns) > 0 and len(columns[0]) == mesh.size)
    told = [local] if mesh.peers is None or known else exchanged(mesh.peers, what, local)
    counts = list(map(len, told))
    if len(set(counts)) > 1:
        raise ShapeError(f"{what}: the workers have {counts} values. HINT: run the same program on every worker.")
    result: list[list[Signature] | None] = []
    for place in range(len(columns)):
        # Workers that share replicas tell the same.
        whole = [signature for message in told[:: mesh.workers_per_replica] for signature in message[place]]
        # Shapes come out of JSON as lists; in tuples they can be compared, and be members of sets.
        known = [(tuple(shape), dtype) for shape, dtype in filter(None, whole)]
        result.append(known if len(known) == len(whole) else None)
    return result


def _broadcast(host: np.ndarray[Any, Any], mesh: ReplicaMesh) -> np.ndarray[Any, Any]:
    """Worker 0's array, as bytes whose number is rounded up, so that few programs are compiled."""
    data = np.frombuffer(np.ascontiguousarray(host).tobytes(), np.uint8)
    padded: np.ndarray[Any, Any] = np.zeros(1 << max(6, (data.size - 1).bit_length()), np.uint8)
    padded[: data.size] = data
    # Over devices and not replicas, whose devices may belong to several workers.
    mesh = mesh.of_devices
    # Chosen here and not in the program by `lax.axis_index`, which takes no array: where constants are computed early,
    # as in a layer that is traced, JAX would compute it outside of the replicas.
    zeros = np.zeros_like(padded)
    first = mesh.devices[0]
    rows = mesh.assemble(
        [jax.device_put(padded if device == first else zeros, device) for device in mesh.local_devices]
    )
    # By the devices and not in the texts of `exchange`: an array may be large.
    result = np.asarray(_first_row(rows, mesh))[: data.size]
    return np.frombuffer(result.tobytes(), host.dtype).reshape(host.shape)


@partial(jax.jit, static_argnums=1)
def _first_row(rows: Numeric, mesh: ReplicaMesh) -> Any:
    """The row of replica 0, on every device; as a sum with zeros, it needs no room for the others' rows."""
    axis = mesh.mesh.axis_names[0]

    def local(row: Numeric) -> Any:
        return lax.psum(row, axis)

    return mesh.map_replicas(local, PartitionSpec(axis), PartitionSpec())(rows)
