"""Descriptions of the values of a checkpoint, and changes of a value's form from one strategy to another.

A variable is saved as its strategy stores it, so that no device ever holds more than it does in training:

| form | stored shape | what it is |
|---|---|---|
| `value` | that of the variable | the value |
| `flat` | `(n,)` | the flattened value and zeros up to a multiple of the replicas: a variable kept in slices |
| `rows` | `(replicas, *shape)` | one value a replica: a variable with synchronization ON_READ |
| `striped` | `(n, *shape[1:])` | `rows` stripes, each of every `rows`-th row of the value, and padding: a table |
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxtribute._src.core.types import ArrayLike, HostArray
from jaxtribute._src.core.values.enums import VariableAggregation
from jaxtribute.errors import CheckpointError

VALUE, FLAT, ROWS, STRIPED = "value", "flat", "rows", "striped"


@dataclass(frozen=True, slots=True)
class Spec:
    """Facts about a saved value that are known without reading it.

    Attributes:
      shape: the shape of the value, as a replica sees it.
      dtype: its element type, as JAX names it.
      form: `value`, `flat`, `rows` or `striped`.
      rows: how many there are in the form `rows`, and how many stripes in the form `striped`.
      aggregation: how rows become one value: the name of a `VariableAggregation`.
      key: for random keys, whose data is saved, the name of their implementation.
      python: for a Python number, its type's name.
    """

    shape: tuple[int, ...]
    dtype: str
    form: str = VALUE
    rows: int = 0
    aggregation: str = VariableAggregation.NONE.name
    key: str | None = None
    python: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The spec as values that JSON can hold; what is as usual is left out."""
        usual = asdict(Spec(self.shape, self.dtype))
        special: dict[str, Any] = {name: value for name, value in asdict(self).items() if value != usual[name]}
        entry: dict[str, Any] = {"shape": list(self.shape), "dtype": self.dtype}
        return entry | special

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Spec:
        """The spec that `as_json` gave."""
        fields: dict[str, Any] = {**entry, "shape": tuple(entry["shape"])}
        return cls(**fields)

    @property
    def size(self) -> int:
        """The number of elements of the value."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        kind = f"{self.dtype}{list(self.shape)}"
        return f"random key ({self.key}) of data {kind}" if self.key else kind


def dtype_of(name: str) -> np.dtype[Any]:
    """The element type of that name, those of JAX included."""
    return np.dtype(jnp.dtype(name))


def to_value(stored: HostArray, spec: Spec) -> HostArray:
    """The value, of shape `spec.shape`, from what a checkpoint stores.

    Rows are brought together as reading the variable does; without an aggregation the first one stands for all.
    """
    if spec.form == FLAT:
        return stored.reshape(-1)[: spec.size].reshape(spec.shape)
    if spec.form == ROWS:
        return combine(stored, spec.aggregation)
    if spec.form == STRIPED:
        return unstriped(stored, spec.shape, spec.rows)
    return stored.reshape(spec.shape)


def unstriped(stored: Any, shape: tuple[int, ...], stripes: int) -> Any:
    """The value of that shape whose rows an array has in stripes."""
    length = -(-shape[0] // stripes)
    rows = stored[: stripes * length].reshape(stripes, length, *shape[1:])
    return rows.swapaxes(0, 1).reshape(stripes * length, *shape[1:])[: shape[0]]


def combine(rows: HostArray, aggregation: str) -> HostArray:
    """One value of the replicas' values."""
    # Half precision is added up wide: its sum may not fit where the mean does, and each addition would round.
    wide = rows.dtype if rows.dtype.kind in "biu" else np.promote_types(rows.dtype, np.float32)
    match aggregation:
        case "SUM":
            return rows.sum(0, dtype=wide).astype(rows.dtype)
        case "MEAN":
            return rows.mean(0, dtype=wide).astype(rows.dtype)
        case "NONE" | "ONLY_FIRST_REPLICA":
            return rows[0]
        case _:
            raise CheckpointError(
                f"a variable with a value on each replica was saved with aggregation {aggregation!r}, which is unknown "
                "here. HINT: restore it by the version that saved it."
            )


def to_rows(value: HostArray, replicas: int, aggregation: str) -> HostArray:
    """One value a replica, so that reading the variable gives `value` to the bit.

    Of a sum the first replica gets everything; otherwise all replicas get the value.
    """
    # All in one row, since a sum of shares might round otherwise.
    if aggregation == VariableAggregation.SUM.name:
        rows = np.zeros((replicas, *value.shape), value.dtype)
        rows[0] = value
        return rows
    return np.broadcast_to(value, (replicas, *value.shape))


def spec_of(array: ArrayLike) -> Spec:
    """The spec of an array or a Python number as it is.

    Args:
      array: an array of JAX (also of random keys) or NumPy, or a Python bool, int or float.
    """
    if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        data = jax.eval_shape(jax.random.key_data, array)
        return Spec(tuple(data.shape), str(data.dtype), key=str(jax.random.key_impl(array)))
    python = type(array).__name__ if isinstance(array, (bool, int, float)) else None
    # Numbers alone: an array of JAX would come to the host for the question.
    plain: Any = np.asarray(array) if python else array
    return Spec(tuple(plain.shape), str(plain.dtype), python=python)
