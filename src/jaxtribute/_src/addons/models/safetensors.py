"""Files of Hugging Face's safetensors, written from a strategy's layout and read into it.

No process ever holds more than its own shards and one tensor: each reads its part of a tensor, and writes its part into
the one file, which must therefore be on a disk that all workers share. Needs the extra `jaxtribute[safetensors]`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute import Variable
from jaxtribute._src.addons.models.model import Model
from jaxtribute.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointMismatchError,
    ContextError,
    MissingLibraryError,
)
from jaxtribute.extending import Context, own, updating
from jaxtribute.extending import saving_cluster as cluster
from jaxtribute.typing import Nest

Host = np.ndarray[Any, Any]

_LONGEST_WAIT_S = 600.0
"""Workers wait for each other as long as for a step, at most."""
_NAMES = {
    "bool": "BOOL",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}
"""The dtypes that `safetensors.numpy` reads, by NumPy's names."""
_DTYPES = {short: name for name, short in _NAMES.items()}


def save(model: Nest, path: str | PathLike[str], *, metadata: Mapping[str, str] | None = None) -> None:
    """Writes weights to one file, which is there complete or not at all.

    In a cluster all workers make the same call, on a shared disk.

    Args:
      model: a `jd.Model`, of which the optimizer's slots and random numbers are left out, or a nest of variables. A
        tensor's name is its path with dots.
      path: the file; its folder is made if it does not exist.
      metadata: texts that the file keeps besides, such as `{"format": "pt"}`.

    Raises:
      ArgumentTypeError: something else than a variable, or a dtype that the format has no name for.
      ContextError: called in a replica function or a `jd.function`.
      DeadlineError: a worker did not come.

    Source: `safetensors.numpy.save_file`.
    """
    target, variables, workers = Path(path), weights(model), cluster()
    unfinished = target.with_name(target.name + ".unfinished")
    header, places = _header(variables, metadata)
    first = workers is None or workers.rank == 0
    if first:
        target.parent.mkdir(parents=True, exist_ok=True)
        with unfinished.open("wb") as file:
            file.write(header)
            file.truncate(len(header) + sum(map(_bytes_of, variables.values())))
    # The file has its whole length before anybody else writes a part into it.
    if workers is not None:
        workers.barrier("safetensors begun", min(workers.timeout_s, _LONGEST_WAIT_S))
    with unfinished.open("r+b") as file:
        for name, variable in variables.items():
            for start, part in _own_parts(variable, first=first):
                file.seek(places[name] + start * variable.dtype.itemsize)
                file.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())
    if workers is not None:
        workers.barrier("safetensors written", min(workers.timeout_s, _LONGEST_WAIT_S))
    if first:
        unfinished.replace(target)
    # No worker goes on, and perhaps reads the file, before it bears its name.
    if workers is not None:
        workers.barrier("safetensors complete", min(workers.timeout_s, _LONGEST_WAIT_S))


def load(
    model: Nest, path: str | PathLike[str], *, names: Callable[[str], str] | None = None, strict: bool = True
) -> None:
    """Reads weights into the variables of a model, each process what its devices hold.

    Args:
      model: as for `save`; abstract ones are filled (see `jd.Model`).
      path: a file, or a folder of several, as Hugging Face's models have them.
      names: what the file calls the tensor of a name; by default the same.
      strict: whether tensors that only the file has are an error. Those that only the model has always are.

    Raises:
      CheckpointMismatchError: names or shapes differ, or a dtype that would lose digits: all that do are listed, and no
        variable has changed.
      MissingLibraryError: safetensors is not installed.
      ContextError: called in a replica function or a `jd.function`.
      FileNotFoundError: there is no such file.

    Source: `safetensors.safe_open`.
    """
    variables = weights(model)
    called = {name: names(name) if names is not None else name for name in variables}
    with ExitStack() as stack:
        tensors: dict[str, _Tensor] = {}
        for file in _files(Path(path)):
            opened = stack.enter_context(_safe_open()(file, framework="np"))
            for name in opened.keys():  # noqa: SIM118  # no mapping
                tensors[name] = _Tensor(opened, name)
        _check(variables, called, tensors, path, strict=strict)
        for name, variable in variables.items():
            _read(variable, tensors[called[name]])


def weights(model: Nest) -> dict[str, Variable]:
    """The variables that a file holds, by the names of their tensors, in the order of the file.

    Raises:
      ArgumentTypeError: the nest holds something else than variables.
      ArgumentError: two have one name, or there is none.
      ContextError: called in a replica function or a `jd.function`.
    """
    context = Context.current()
    if context.executor.traced or context.executor.local:
        raise ContextError("weights were saved or loaded in a replica function or a jd.function. HINT: between steps.")
    if isinstance(model, Model):
        named = [(".".join(path), variable) for path, variable in model.weights()]
    else:
        leaves = jax.tree.leaves_with_path(model, is_leaf=lambda leaf: isinstance(leaf, Variable))
        named = [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in leaves]
    for name, leaf in named:
        if not isinstance(leaf, Variable) or leaf.dtype.name not in _NAMES:
            raise ArgumentTypeError(
                f"{name} is a {type(leaf).__name__} of dtype {getattr(leaf, 'dtype', None)}. HINT: pass a jd.Model or "
                f"a nest of jd.Variables of the dtypes {', '.join(_NAMES)}."
            )
    found = dict(named)
    if not found or len(found) < len(named):
        raise ArgumentError(f"{len(named)} variables with {len(found)} names. HINT: give each a name of its own.")
    return found


# Writing.


def _header(variables: Mapping[str, Variable], metadata: Mapping[str, str] | None) -> tuple[bytes, dict[str, int]]:
    """The file's beginning, and where in the file each tensor starts."""
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    starts: dict[str, int] = {}
    end = 0
    for name, variable in variables.items():
        starts[name], end = end, end + _bytes_of(variable)
        dtype = _NAMES[variable.dtype.name]
        entries[name] = {"dtype": dtype, "shape": list(variable.shape), "data_offsets": [starts[name], end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    # The format lets tensors begin at multiples of 8 bytes.
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + start for name, start in starts.items()}


def _bytes_of(variable: Variable) -> int:
    return variable.size * variable.dtype.itemsize


def _own_parts(variable: Variable, *, first: bool) -> Iterator[tuple[int, Host]]:
    """The parts of a variable that this process writes: runs of the flattened value with their first places.

    Args:
      variable: the variable.
      first: whether this is the first process, which writes what all have.
    """
    stored, form = variable.stored, variable.policy.form
    if form == "flat":
        for shard in stored.addressable_shards:
            start = shard.index[0].start or 0
            # One of several copies is written; behind the variable's end there is padding alone.
            if shard.replica_id == 0 and start < variable.size:
                yield start, np.asarray(shard.data)[: variable.size - start]
    elif form == "value" and stored.is_fully_replicated:
        if first:
            yield 0, np.asarray(stored.addressable_data(0))
    else:
        # Of rows, one a replica, or of parts on the devices of each replica: all processes bring them together.
        whole = variable.numpy()
        if first:
            yield 0, np.asarray(whole)


# Reading.


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor of an open file."""

    file: Any
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.file.get_slice(self.name).get_shape())

    @property
    def dtype(self) -> str:
        """NumPy's name, or that of the format if it is unknown."""
        short = str(self.file.get_slice(self.name).get_dtype())
        return _DTYPES.get(short, short)

    def run(self, start: int, stop: int) -> Host:
        """The elements `[start, stop)` of the flattened tensor."""
        shape = self.shape
        if start >= stop:  # a replica that holds padding alone
            return np.empty(0, jnp.dtype(self.dtype))
        if not shape:
            return np.asarray(self.file.get_tensor(self.name)).reshape(-1)[start:stop]
        row = math.prod(shape[1:])
        # A slice of the file is one of whole rows: those that hold the run are read, and cut at both ends.
        first, last = start // row, -(-stop // row)
        rows = np.asarray(self.file.get_slice(self.name)[first:last]).reshape(-1)
        return rows[start - first * row : stop - first * row]


def _read(variable: Variable, tensor: _Tensor) -> None:
    stored = variable.stored
    if variable.policy.form != "flat":
        value = tensor.run(0, variable.size).reshape(variable.shape).astype(variable.dtype, copy=False)
        if variable.policy.form != "value" or variable.policy.by_rows:
            variable.assign(value)
            return
        with updating:
            variable.bind(own(value, stored.sharding if stored.committed else None))
        return

    def part(index: tuple[slice, ...] | None) -> Host:
        assert index is not None
        start, stop, _ = index[0].indices(stored.shape[0])
        found = tensor.run(min(start, variable.size), min(stop, variable.size)).astype(variable.dtype, copy=False)
        return np.pad(found, (0, stop - start - found.size))

    array = jax.make_array_from_callback(stored.shape, stored.sharding, part)
    with updating:
        variable.bind(array.copy())  # JAX may have taken the host's memory as it is


def _check(
    variables: Mapping[str, Variable],
    called: Mapping[str, str],
    tensors: Mapping[str, _Tensor],
    path: str | PathLike[str],
    *,
    strict: bool,
) -> None:
    wrong: list[str] = []
    for name, variable in variables.items():
        tensor = tensors.get(called[name])
        if tensor is None:
            wrong.append(f"{called[name]} is missing")
        elif tensor.shape != variable.shape or not _fits(tensor.dtype, variable.dtype.name):
            wrong.append(
                f"{called[name]} is {tensor.dtype}{list(tensor.shape)}, {variable.name} "
                f"{variable.dtype.name}{list(variable.shape)}"
            )
    extra = sorted(set(tensors) - set(called.values())) if strict else []
    wrong += [f"{name} is only in the file" for name in extra]
    if wrong:
        raise CheckpointMismatchError(
            f"{path} does not fit the model: {'; '.join(wrong)}. HINT: rename by names=, leave tensors out by "
            "strict=False, or make the model with the shapes and dtypes of the file."
        )


def _fits(given: str, wanted: str) -> bool:
    """True if every number of the one dtype is one of the other."""
    if given not in _NAMES:
        return False
    floating = all(jnp.issubdtype(dtype, jnp.floating) for dtype in (given, wanted))
    return given == wanted or (floating and np.can_cast(jnp.dtype(given), jnp.dtype(wanted), "safe"))


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        if not path.exists():
            raise FileNotFoundError(f"there is no file {path}. HINT: pass a file of safetensors, or a folder of them.")
        return [path]
    found = sorted(path.glob("*.safetensors"))
    if not found:
        raise FileNotFoundError(f"there is no *.safetensors in {path}. HINT: pass the folder of a model, or its file.")
    return found


def _safe_open() -> Any:
    try:
        import ml_dtypes  # pyright: ignore[reportUnusedImport]  # noqa: F401  # gives NumPy the name bfloat16
        from safetensors import safe_open
    except ImportError as error:
        raise MissingLibraryError(
            "reading safetensors needs the library of that name, which is not installed. HINT: pip install "
            "-e '.[safetensors]' in a clone."
        ) from error
    return safe_open
