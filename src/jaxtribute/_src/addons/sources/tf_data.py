"""`tf.data.Dataset`, where TensorFlow is imported already; this package never imports it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxtribute import ArraySpec, AutoShardPolicy
from jaxtribute.errors import InputError
from jaxtribute.extending import Batch, Shard, Source, as_batch
from jaxtribute.extending import register_source as register
from jaxtribute.typing import Foreign, Json, Nest


def _tf() -> Any:
    return sys.modules.get("tensorflow")


def _accepts(dataset: object) -> bool:
    tf = _tf()
    data = getattr(tf, "data", None)
    return data is not None and isinstance(dataset, data.Dataset)


class TfSource(Source):
    """A TensorFlow dataset, read on the host. Its position is a count of batches, skipped when it is restored."""

    name = "tf.data.Dataset"
    finds_files = True

    def __init__(self, dataset: Foreign) -> None:
        self._dataset = dataset
        self.shuffled_anew = any(_shuffles_anew(node) for node in _walk(dataset))

    def open(self, shard: Shard) -> _TfStream:
        """Starts a pass; a worker reads all of it, and its share is cut from each batch."""
        return _TfStream(self._dataset, self.shuffled_anew)

    def spec(self) -> Nest | None:
        """Shapes and dtypes, as TensorFlow states them."""

        def leaf(spec: Foreign) -> ArraySpec:
            if not isinstance(spec, _tf().TensorSpec) or spec.shape.rank is None:
                raise InputError(
                    f"{spec} has no shape that arrays could have. HINT: make dense tensors of a known rank, e.g. with "
                    "dataset.padded_batch or tf.ensure_shape."
                )
            kind = np.dtype(spec.dtype.as_numpy_dtype)
            dtype = kind if kind.kind in "OSU" else jax.dtypes.canonicalize_dtype(spec.dtype.as_numpy_dtype)
            return ArraySpec(tuple(spec.shape), dtype)

        return jax.tree.map(leaf, self._dataset.element_spec)

    def static_rows(self) -> bool:
        """True if the pipeline drops its remainder."""
        return all(not leaf.shape or leaf.shape[0] is not None for leaf in jax.tree.leaves(self.spec()))

    def batch_size(self) -> int | None:
        # TensorFlow's own walk: what comes after the batching may have changed the rows.
        module = importlib.import_module("tensorflow.python.data.experimental.ops.distribute")
        size = int(module.compute_batch_size(self._dataset))
        return size if size > 0 else None

    def files(self) -> tuple[str, ...]:
        """The files of its readers, as far as they are known before reading."""
        found: list[str] = []
        for node in _walk(self._dataset):
            names = getattr(node, "_filenames", None)
            if names is not None:
                found += _strings(names)
            elif any(kind in type(node).__name__ for kind in ("Interleave", "FlatMap")):
                found += _names_below(node)
        return tuple(found)

    def by_file(self, shard: Shard) -> Source:
        return TfSource(_auto_shard(self._dataset, shard, AutoShardPolicy.FILE))

    def by_hint(self, shard: Shard) -> Source:
        return TfSource(_auto_shard(self._dataset, shard, AutoShardPolicy.HINT))

    def policy(self) -> AutoShardPolicy | None:
        return AutoShardPolicy(int(self._dataset.options().experimental_distribute.auto_shard_policy))


def _walk(node: Foreign) -> Iterator[Any]:
    yield node
    for below in node._inputs():
        yield from _walk(below)


def _shuffles_anew(node: Foreign) -> bool:
    """True if a node shuffles in another order each time: without a seed, or with one for each iteration."""
    if "Shuffle" not in type(node).__name__:
        return False
    # TensorFlow keeps a seed in two halves, of which one may be 0.
    seeds = [getattr(node, name, None) for name in ("_seed", "_seed2")]
    seeded = any(int(seed) for seed in seeds if seed is not None)
    return not seeded or getattr(node, "_reshuffle_each_iteration", True) is not False


def _auto_shard(dataset: Foreign, shard: Shard, policy: AutoShardPolicy) -> Any:
    """TensorFlow's own sharding rewrite of a dataset's graph."""
    tf = _tf()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy(int(policy))
    input_ops = importlib.import_module("tensorflow.python.distribute.input_ops")
    try:
        return input_ops.auto_shard_dataset(dataset.with_options(options), shard.workers, shard.worker, shard.replicas)
    except tf.errors.OpError as error:
        # Behind the name of the graph's node stands what a reader can understand.
        why = error.message.splitlines()[0].split("}} ")[-1].strip()
        raise InputError(
            f"AutoShardPolicy.{policy.name}: TensorFlow cannot shard this dataset over {shard.workers} workers: "
            f"{why}. HINT: use AutoShardPolicy.DATA, or shard it yourself in "
            "strategy.distribute_datasets_from_function."
        ) from error


def _names_below(node: Foreign) -> list[str]:
    """The strings that an interleaving starts from, which are the names of files that its function opens."""
    # The walk ends at the innermost source.
    source = [*_walk(node)][-1]
    spec = source.element_spec
    is_names = getattr(spec, "dtype", None) == _tf().string and spec.shape.rank == 0
    return _strings(source) if is_names else []


def _strings(names: Foreign) -> list[str]:
    """File names, from a tensor of them or a dataset of such."""
    if hasattr(names, "as_numpy_iterator"):
        return [name for piece in names.as_numpy_iterator() for name in _strings(piece)]
    return [name.decode() for name in np.atleast_1d(np.asarray(names)).tolist()]


class _TfStream:
    def __init__(self, dataset: Foreign, shuffled_anew: bool) -> None:
        self._dataset = dataset
        self._iterator: Any = iter(dataset.as_numpy_iterator())
        self._shuffled_anew = shuffled_anew
        self._count = 0

    def __next__(self) -> Batch:
        batch = as_batch(next(self._iterator))
        self._count += 1
        return batch

    def get_state(self) -> dict[str, int]:
        """The position."""
        return {"batches": self._count}

    def set_state(self, state: Json) -> None:
        """Goes to a position."""
        count = int(state["batches"])
        if self._shuffled_anew:
            raise InputError(
                f"cannot go to batch {count}: this tf.data.Dataset shuffles anew each time and would not give the "
                "same batches again. HINT: shuffle(..., seed=..., reshuffle_each_iteration=False)."
            )
        self._iterator = iter(self._dataset.skip(count).as_numpy_iterator())
        self._count = count

    def close(self) -> None:
        """Closes what is read from."""
        # TensorFlow frees its iterator, and the threads behind it, with the last reference.
        self._iterator = iter(())


register("tf.data.Dataset (with TensorFlow imported)", _accepts, TfSource)
