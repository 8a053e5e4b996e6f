"""`TableConfig` and `FeatureConfig`: descriptions of tables and of what is looked up in them, as keras-rs has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from jaxtribute.errors import ArgumentError
from jaxtribute.extending import settings

_COMBINERS = ("mean", "sum", "sqrtn")
_PLACEMENTS = ("auto", "default_device")
_TRUNCATED = 0.87962566103423978
"""The standard deviation of a standard normal number that is cut off at two, by which Keras divides."""


def _default_initializer() -> Any:
    return keras.initializers.VarianceScaling(mode="fan_out")


@dataclass
class TableConfig:
    """The description of a table of embeddings.

    Args:
      name: its name.
      vocabulary_size: the number of rows.
      embedding_dim: the width of a row.
      initializer: a Keras initializer, or its name.
      optimizer: the Keras optimizer of the table's rows, or its name: SGD, Adagrad or Adam. It is the table's own; that
        of `model.compile` updates everything else.
      combiner: the way in which several rows of an example become one: `"mean"`, `"sum"` or `"sqrtn"`.
      placement: `"auto"` lays the rows over the replicas of a strategy; `"default_device"` makes a weight of Keras's,
        which the model's optimizer updates, as `"auto"` does where rows cannot lie over replicas: outside of every
        strategy and under parameter servers.
      max_ids_per_partition: not used: no buffer here has a size that ids could overflow.
      max_unique_ids_per_partition: likewise.

    Source: `keras_rs.layers.TableConfig`.
    """

    name: str
    vocabulary_size: int
    embedding_dim: int
    initializer: Any = field(default_factory=_default_initializer)
    optimizer: Any = "adam"
    combiner: str = "mean"
    placement: str = "auto"
    max_ids_per_partition: int = 256
    max_unique_ids_per_partition: int = 256

    def __post_init__(self) -> None:
        settings.text("name", self.name)
        settings.whole("vocabulary_size", self.vocabulary_size, 1)
        settings.whole("embedding_dim", self.embedding_dim, 1)
        self.initializer = keras.initializers.get(self.initializer)
        self.optimizer = keras.optimizers.get(self.optimizer)
        if self.combiner not in _COMBINERS:
            raise ArgumentError(f"{self.name}: combiner is {self.combiner!r}. HINT: pass one of {_COMBINERS}.")
        if self.placement not in _PLACEMENTS:
            raise ArgumentError(
                f"{self.name}: placement is {self.placement!r}. HINT: pass one of {_PLACEMENTS}; 'auto' lays rows over "
                "the replicas, and none on SparseCores."
            )

    def get_config(self) -> dict[str, Any]:
        """The description, as Keras writes it."""
        config = {name: getattr(self, name) for name in self.__dataclass_fields__}
        config["initializer"] = keras.saving.serialize_keras_object(self.initializer)
        config["optimizer"] = keras.saving.serialize_keras_object(self.optimizer)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TableConfig:
        """The description of what `get_config` gave."""
        config = dict(config)
        for name in ("initializer", "optimizer"):
            if isinstance(config.get(name), dict):
                config[name] = keras.saving.deserialize_keras_object(config[name])
        return cls(**config)


@dataclass
class FeatureConfig:
    """The description of one lookup.

    Args:
      name: its name.
      table: the table, which several features may share.
      input_shape: the shape of the ids of the global batch, `(batch,)` or `(batch, ids)`; None for a length that is not
        known.
      output_shape: the shape of what comes out, `(batch, width)`.

    Source: `keras_rs.layers.FeatureConfig`.
    """

    name: str
    table: TableConfig
    input_shape: Sequence[int | None]
    output_shape: Sequence[int | None]

    def __post_init__(self) -> None:
        settings.text("name", self.name)
        if not isinstance(self.table, TableConfig):
            kind = type(self.table).__name__
            raise ArgumentError(f"feature {self.name}: table is a {kind}. HINT: pass a TableConfig.")
        rank = len(self.input_shape)
        if rank not in (1, 2) or self.output_shape[-1] != self.table.embedding_dim:
            raise ArgumentError(
                f"feature {self.name}: input_shape {tuple(self.input_shape)} and output_shape "
                f"{tuple(self.output_shape)} for rows of {self.table.embedding_dim}. HINT: give (batch,) or (batch, "
                f"ids), and (batch, {self.table.embedding_dim})."
            )

    def get_config(self) -> dict[str, Any]:
        """The description, as Keras writes it."""
        return {
            "name": self.name,
            "table": self.table.get_config(),
            "input_shape": list(self.input_shape),
            "output_shape": list(self.output_shape),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> FeatureConfig:
        """The description of what `get_config` gave."""
        given: dict[str, Any] = dict(config)
        if not isinstance(given["table"], TableConfig):
            given["table"] = TableConfig.from_config(given["table"])
        return cls(**given)


def first_rows(config: TableConfig) -> Any:
    """The first rows of a table: a function of their ids, by Keras's usual initializers; else an array of all."""
    initializer, shape = config.initializer, (config.vocabulary_size, config.embedding_dim)
    settings_of = initializer.get_config() if hasattr(initializer, "get_config") else {}
    seed = getattr(initializer, "seed", None)
    draw = _draw(initializer, settings_of, shape)
    if draw is None or not isinstance(seed, int):
        return np.asarray(initializer(shape, dtype="float32"))

    def rows(ids: jax.Array) -> jax.Array:
        key = jax.random.key(seed)
        return jax.vmap(lambda number: draw(jax.random.fold_in(key, number)))(ids)

    return rows


def _draw(initializer: Any, given: dict[str, Any], shape: tuple[int, int]) -> Callable[[Any], jax.Array] | None:
    """The function that draws a row with a key as an initializer would; None for those that are not known."""
    kinds = keras.initializers
    uniform, normal = partial(jax.random.uniform, shape=shape[1:]), partial(jax.random.normal, shape=shape[1:])
    truncated = partial(jax.random.truncated_normal, lower=-2.0, upper=2.0, shape=shape[1:])
    if type(initializer) is kinds.RandomUniform:
        return partial(uniform, minval=given["minval"], maxval=given["maxval"])
    if type(initializer) in (kinds.RandomNormal, kinds.TruncatedNormal):
        draw = normal if type(initializer) is kinds.RandomNormal else truncated
        return lambda key: jnp.float32(given["mean"]) + draw(key) * jnp.float32(given["stddev"])
    if not isinstance(initializer, kinds.VarianceScaling):
        return None
    fans = {"fan_in": shape[0], "fan_out": shape[1], "fan_avg": sum(shape) / 2}
    scale = initializer.scale / max(1.0, fans[initializer.mode])
    if initializer.distribution == "uniform":
        limit = math.sqrt(3 * scale)
        return partial(uniform, minval=-limit, maxval=limit)
    if initializer.distribution == "truncated_normal":
        return lambda key: truncated(key) * jnp.float32(math.sqrt(scale) / _TRUNCATED)
    return lambda key: normal(key) * jnp.float32(math.sqrt(scale))
