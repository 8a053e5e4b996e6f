"""Arrays in and out of files, by Orbax: no more of them in host memory at a time than a part of a checkpoint.

A checkpoint's arrays are one Orbax pytree, a flat dict by name, in the folder `state`. Each process writes the
parts that are on its devices and the first one brings the index together, which `merge` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import Sharding
from orbax.checkpoint import type_handlers

from jaxtribute._src.core.types import Foreign, HostArray
from jaxtribute._src.core.values.stored import Lease

_BATCH_BYTES = 16 << 20
"""Arrays that are written or read together; more at a time is not faster."""
_CHUNK_BYTES = 128 << 20
"""The pieces of a large array in the files, which are written and read on their own."""
_THREADS = 2
"""For copying and for writing: they take time from the training, and each keeps memory that it has used."""
_SHARE_BYTES = 1 << 20
"""From this size on, processes that have the same array write a part of it each."""

_handlers = cast(Any, type_handlers)
_ocp = cast(Any, ocp)


class _Borrowed:
    """An array on loan, as a leaf of Orbax's tree; `place` is its place among all."""

    def __init__(self, lease: Lease, place: int) -> None:
        self.lease, self.place = lease, place
        self.shape, self.dtype, self.nbytes = lease.shape, lease.dtype, lease.nbytes


class _BorrowedHandler(_handlers.ArrayHandler):
    """Writes borrowed arrays a few at a time, and gives each back as soon as it is in its file.

    It begins with the last: a step that comes meanwhile copies what it writes from the first on, so the two meet.
    """

    def __init__(self) -> None:
        super().__init__(
            use_replica_parallel=jax.process_count() > 1,
            min_slice_bytes_for_replica_parallel=_SHARE_BYTES,
            enable_write_sharding_file=False,
            array_metadata_store=None,
        )

    def typestr(self) -> str:
        """Type that plain Orbax sees: an array for the host, whatever devices there are."""
        return "np.ndarray"

    async def serialize(self, values: Sequence[_Borrowed], infos: Sequence[Any], args: Foreign = None) -> Sequence[Any]:
        """Writes all of `values`; nothing is left to wait for."""
        context = _handlers.get_ts_context(
            use_ocdbt=True, file_io_concurrency_limit=_THREADS, data_copy_concurrency_limit=_THREADS
        )
        # Orbax would choose the threads by itself, and the training has to share the cores with them.
        for info in infos:
            info.ts_context = context
        order = sorted(range(len(values)), key=lambda i: -values[i].place)
        for batch in batches([values[i].nbytes for i in order]):
            chosen = [values[i] for i in order[batch]]
            arrays = [value.lease.take() for value in chosen]
            saved = [_handlers.SaveArgs(chunk_byte_size=_CHUNK_BYTES)] * len(chosen)
            for commit in await super().serialize(arrays, [infos[i] for i in order[batch]], saved):
                commit.result()
            # The memory of a copy is freed when it is given back: nothing may point there any more.
            del arrays
            for value in chosen:
                value.lease.give_back()
        return []


def batches(sizes: Sequence[int], limit: int = _BATCH_BYTES) -> Generator[slice]:
    """Cuts a row of arrays into runs of at most `limit` bytes, or of one array that is larger.

    Args:
      sizes: the bytes of each.
      limit: how many go together.
    """
    start = total = 0
    for place, size in enumerate(sizes):
        if place > start and total + size > limit:
            yield slice(start, place)
            start, total = place, 0
        total += size
    if start < len(sizes):
        yield slice(start, len(sizes))


def begin(arrays: Mapping[str, Lease | HostArray]) -> None:
    """Takes what is written first: a step that comes waits for it and copies only the rest.

    Args:
      arrays: what `write` will get.
    """
    # The last first, as `_BorrowedHandler` writes them.
    leases = [value for value in list(arrays.values())[::-1] if isinstance(value, Lease)]
    for lease in leases[next(batches([lease.nbytes for lease in leases]), slice(0))]:
        lease.take()


def _handler() -> Any:
    borrowed = _BorrowedHandler()
    registry = _handlers.create_type_handler_registry(
        (_Borrowed, borrowed),
        (np.ndarray, _handlers.NumpyHandler(deepcopy_host_arrays=False)),
        (jax.Array, borrowed),  # none is written, and Orbax warns where it finds no handler for them
    )
    return _ocp.PyTreeCheckpointHandler(use_compression=False, type_handler_registry=registry)


def write(directory: Path, arrays: Mapping[str, Lease | HostArray]) -> None:
    """Writes this process's parts of all arrays; those on the host are written by the first process alone.

    Args:
      directory: a folder that exists, the same for all processes.
      arrays: the same names in every process; loans are given back, also if it fails.
    """
    tree = {
        name: _Borrowed(value, place) if isinstance(value, Lease) else value
        for place, (name, value) in enumerate(arrays.items())
    }

    async def run() -> None:
        for commit in await _handler().async_save(epath.Path(directory), args=_ocp.args.PyTreeSave(tree)):
            await asyncio.to_thread(commit.result)

    try:
        asyncio.run(run())
    finally:
        for value in arrays.values():
            if isinstance(value, Lease):
                value.give_back()


def merge(directory: Path) -> None:
    """Brings the index together; called by one process once all have written."""
    _handler().finalize(epath.Path(directory))


def folder_of_process(directory: Path) -> Path:
    """The folder of the files that this process alone writes, among those of `directory`."""
    return directory / f"ocdbt.process_{jax.process_index()}"


def read(directory: Path, wanted: Mapping[str, tuple[tuple[int, ...], Sharding] | None]) -> dict[str, Any]:
    """Reads some arrays.

    Args:
      directory: the folder that `write` and `merge` filled.
      wanted: the names, each with the shape and placement to read it with, filled with zeros or cut at its ends; or
        None for the stored array on the host.
    """

    def args(how: tuple[tuple[int, ...], Sharding] | None) -> Any:
        if how is None:
            return _handlers.RestoreArgs(restore_type=np.ndarray)
        shape, sharding = how
        return _handlers.ArrayRestoreArgs(restore_type=jax.Array, global_shape=shape, sharding=sharding, strict=False)

    tree = _ocp.args.PyTreeRestore(
        # Orbax wants a tree of these names, and does not look at what is in it.
        item=dict.fromkeys(wanted, 0),
        restore_args={name: args(how) for name, how in wanted.items()},
        partial_restore=True,
    )
    return cast("dict[str, Any]", _ocp.PyTreeCheckpointHandler().restore(epath.Path(directory), args=tree))


def metadata(directory: Path) -> dict[str, Any]:
    """Shapes and dtypes of all arrays of a folder, by name."""
    return cast("dict[str, Any]", _ocp.PyTreeCheckpointHandler().metadata(epath.Path(directory)).tree)
