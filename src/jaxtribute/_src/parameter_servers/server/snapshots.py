"""A server's state in a file: an uncompressed NumPy archive, and its header as JSON inside.

Not an Orbax checkpoint: each server writes what it alone holds, without another process and without a copy, together
with the pushes that it has applied, which belong to a cluster and not to a model. What is to outlive the cluster is
saved with `jd.Checkpoint`, on Orbax.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxtribute._src.parameter_servers.messaging.wire import Header


def write(path: Path, header: Header, arrays: Sequence[Any]) -> None:
    """Writes a state so that `path` never names half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    specs = [[np.asarray(array).dtype.name, np.shape(array)] for array in arrays]
    text = json.dumps({"header": header, "specs": specs})
    # Bytes: NumPy's format does not know element types such as bfloat16.
    flat = {f"a{i}": np.ascontiguousarray(array).reshape(-1).view(np.uint8) for i, array in enumerate(arrays)}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, header=np.array(text), **flat)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def read(path: Path) -> tuple[Header, Iterator[np.ndarray[Any, Any]]]:
    """Reads what `write` wrote: each array when it is asked for, so that no two states need be in memory."""
    archive = np.load(path, allow_pickle=False)
    described = json.loads(str(archive["header"]))

    def arrays() -> Iterator[np.ndarray[Any, Any]]:
        with archive:
            for i, (name, shape) in enumerate(described["specs"]):
                yield archive[f"a{i}"].view(np.dtype(name)).reshape(shape)

    return described["header"], arrays()
