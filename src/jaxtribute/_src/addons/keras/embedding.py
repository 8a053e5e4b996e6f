"""`DistributedEmbedding`: tables of embeddings in a Keras model, whose rows lie over the replicas of its strategy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np

from jaxtribute import Optimizer, Strategy, Variable, VariableSynchronization
from jaxtribute._src.addons.keras.share import current
from jaxtribute._src.addons.keras.table_configs import FeatureConfig, TableConfig, first_rows
from jaxtribute._src.addons.keras.table_optimizers import fixed_rate, transform_of
from jaxtribute._src.addons.keras.variables import StrategyVariable
from jaxtribute.errors import ArgumentError, ShapeError
from jaxtribute.extending import Context
from jaxtribute.nn import ShardedTable, embedding_lookup
from jaxtribute.typing import Nest

_PREPROCESSED = "preprocessed_inputs"


class TableVariable(StrategyVariable):
    """A Keras variable whose value is a table, or is in a table's optimizer.

    Args:
      held: the variable that holds the value.
      name: its name.
    """

    def __init__(self, held: Any, name: str) -> None:
        self.strategy, self._held = held.distribute_strategy, held
        super().__init__(
            initializer="zeros",  # which is not asked: the value is there
            shape=held.shape,
            dtype=str(held.dtype),
            trainable=False,
            name=name,
        )

    def _initialize_with_initializer(self, initializer: Any) -> None:
        del initializer
        self._stored = self._held


@keras.saving.register_keras_serializable("jaxtribute")
class DistributedEmbedding(keras.layers.Layer):
    """Lookups in tables of embeddings whose rows lie over the replicas of the strategy in whose scope it is made.

    A step exchanges and updates the rows that its examples name, and makes nothing of a table's size. Each table has
    an optimizer of its own, which `fit` applies; tables and the state of their optimizers are among the layer's
    non-trainable weights, so that they are saved and loaded with the model. `layer.trainable = False` freezes them.

    Args:
      feature_configs: a nest of `FeatureConfig`; inputs and outputs are nests of the same structure.
      table_stacking: not used: what tables share in a step does not depend on it.
      update_stats: not used: there are no buffers whose sizes could be too small.
      kwargs: what other layers take.

    Raises:
      ArgumentError: something else than `FeatureConfig` in the nest, two tables of one name, or a table's optimizer
        that does not update rows.

    Source: `keras_rs.layers.DistributedEmbedding`.
    """

    def __init__(
        self, feature_configs: Nest, *, table_stacking: Any = "auto", update_stats: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.autocast = False  # ids may be floating, and are not to be rounded
        self._table_stacking, self._update_stats = table_stacking, update_stats
        # Past Keras's own `__setattr__`, which would make other containers of these.
        object.__setattr__(self, "_feature_configs", feature_configs)
        features = keras.tree.flatten(feature_configs)
        strangers = [type(one).__name__ for one in features if not isinstance(one, FeatureConfig)]
        if strangers or not features:
            raise ArgumentError(f"feature_configs has {strangers or 'nothing'}. HINT: pass a nest of FeatureConfig.")
        configs: dict[str, TableConfig] = {}
        for feature in features:
            if configs.setdefault(feature.table.name, feature.table) is not feature.table:
                raise ArgumentError(
                    f"two tables are named {feature.table.name!r}. HINT: share one TableConfig, or rename one."
                )
        strategy = Context.current().strategy
        tables: dict[str, Any] = {}
        optimizers: dict[str, Optimizer] = {}
        kept: dict[str, list[Any]] = {}
        for config in configs.values():
            if config.placement == "default_device" or not has_rows(strategy):
                tables[config.name] = self._weight(config)
                kept[config.name] = [tables[config.name]]
                continue
            table = ShardedTable(config.vocabulary_size, config.embedding_dim, first_rows(config), name=config.name)
            optimizer = Optimizer(transform_of(config.optimizer, config.name), [table])
            tables[config.name], optimizers[config.name] = table, optimizer
            kept[config.name] = [
                TableVariable(one, one.name.removesuffix(":0").replace("/", "_"))
                for one in (table, *optimizer.variables)
            ]
        object.__setattr__(self, "_tables", tables)
        object.__setattr__(self, "_optimizers", optimizers)
        ruled = [config for config in configs.values() if config.name in optimizers]
        object.__setattr__(self, "_rates", [(config, fixed_rate(config.optimizer)) for config in ruled])
        object.__setattr__(self, "_kept", kept)
        self._others = [one for some in kept.values() for one in some if isinstance(one, TableVariable)]

    def _weight(self, config: TableConfig) -> Any:
        return self.add_weight(
            shape=(config.vocabulary_size, config.embedding_dim), initializer=config.initializer, name=config.name
        )

    def save_own_variables(self, store: Any) -> None:
        """Saves tables by their names, `users`, and the state of their optimizers beside them, `users:1`."""
        for name, variables in self._kept.items():
            for place, variable in enumerate(variables):
                store[_key(name, place)] = variable

    def load_own_variables(self, store: Any) -> None:
        """Loads tables by their names, wherever their rows were; of their optimizers' state what was saved and is here.

        Raises:
          ArgumentError: a table was not saved, or something has another shape; nothing has changed then.
        """
        found: list[tuple[Any, Any]] = []
        present = set(store.keys())
        for name, variables in self._kept.items():
            for place, variable in enumerate(variables):
                key = _key(name, place)
                if place and key not in present:
                    continue
                value = np.asarray(store[key]) if key in present else None
                if value is None or value.shape != tuple(variable.shape):
                    was = "not saved" if value is None else f"saved with shape {value.shape}"
                    raise ArgumentError(
                        f"{key} of the layer {self.name} has shape {tuple(variable.shape)}, and was {was}. HINT: load "
                        "what a layer of the same tables and optimizers has saved."
                    )
                found.append((variable, value))
        for variable, value in found:
            variable.assign(value)

    def build(self, input_shape: Any) -> None:
        """Checks the inputs' shapes, which those of the features must fit."""
        if not _is_preprocessed(input_shape):
            keras.tree.map_structure_up_to(self._feature_configs, _check_shape, self._feature_configs, input_shape)
        super().build(input_shape)

    def preprocess(self, inputs: Nest, weights: Nest = None, training: bool = False) -> Any:
        """Returns ids and weights as one nest that the layer takes, with rows of several lengths filled up.

        Args:
          inputs: the features' ids: arrays; or lists of rows of several lengths, which become as long as the feature's
            `input_shape` says, or as the longest is. Those that are longer are cut.
          weights: a weight for each id, likewise.
          training: not used.
        """
        del training
        features = self._feature_configs
        ids = keras.tree.map_structure_up_to(features, _filled, features, inputs)
        if weights is not None:
            weights = keras.tree.map_structure_up_to(features, partial(_filled, fill=0.0), features, weights)
        return {_PREPROCESSED: {"inputs": ids} if weights is None else {"inputs": ids, "weights": weights}}

    def __call__(self, inputs: Nest, weights: Nest = None, **kwargs: Any) -> Any:
        """Calls the layer; rows of several lengths are filled up first."""
        leaves = () if _is_preprocessed(inputs) else keras.tree.flatten(inputs)
        if any(isinstance(leaf, np.ndarray) and leaf.dtype == object for leaf in leaves):
            inputs, weights = self.preprocess(inputs, weights), None
        return super().__call__(inputs, weights, **kwargs)

    def call(self, inputs: Nest, weights: Nest = None, training: bool = False) -> Any:
        """Looks the features up.

        Args:
          inputs: a nest of ids as `feature_configs`, of shapes `(batch,)` or `(batch, ids)`; -1 is no row. Or what
            `preprocess` gave.
          weights: a weight for each id, in a nest of the same structure.
          training: not used.

        Returns:
          A nest of the same structure, of shapes `(batch, width)`.
        """
        del training
        if _is_preprocessed(inputs):
            inputs, weights = inputs[_PREPROCESSED]["inputs"], inputs[_PREPROCESSED].get("weights")
        keras.tree.assert_same_structure(self._feature_configs, inputs)
        given = [None] * len(keras.tree.flatten(inputs)) if weights is None else keras.tree.flatten(weights)
        features = keras.tree.flatten(self._feature_configs)
        asked = dict(enumerate(map(self._asked, features, keras.tree.flatten(inputs), given)))
        tables, ids, own_weights = ({str(place): one[part] for place, one in asked.items()} for part in range(3))
        combiners: Any = {str(place): feature.table.combiner for place, feature in enumerate(features)}
        found = embedding_lookup(tables, ids, own_weights, combiners)
        outputs = [found[str(place)].astype(self.compute_dtype) for place in asked]
        return keras.tree.pack_sequence_as(self._feature_configs, outputs)

    def _asked(self, feature: FeatureConfig, ids: Any, weights: Any) -> tuple[Any, Any, Any]:
        """The table of a feature, or its weight's value, with ids and weights as they are looked up in it."""
        config = feature.table
        table = self._tables[config.name]
        if len(ids.shape) == 1:
            ids, weights = ids[:, None], None if weights is None else jnp.asarray(weights).reshape(-1, 1)
        if not jnp.issubdtype(ids.dtype, jnp.integer):
            # Keras's inputs are floating unless their dtype is said.
            if config.vocabulary_size > 2 / jnp.finfo(ids.dtype).eps:
                raise ArgumentError(
                    f"the ids of feature {feature.name} have dtype {ids.dtype}, which does not tell {config.name}'s "
                    f"{config.vocabulary_size:,} rows from each other. HINT: pass integers, keras.Input(..., "
                    "dtype='int32')."
                )
            ids = jnp.asarray(ids, jnp.int32)
        if config.name in self._optimizers:
            ids = _own(ids)
        else:
            table = table.value
        return table, ids, weights

    def compute_output_spec(self, inputs: Nest, weights: Nest = None, training: bool = False) -> Any:
        """The outputs' shapes: those of the inputs' batch."""
        del weights, training
        given = keras.tree.flatten(inputs[_PREPROCESSED]["inputs"] if _is_preprocessed(inputs) else inputs)
        features = keras.tree.flatten(self._feature_configs)
        specs = [
            keras.KerasTensor((one.shape[0], feature.table.embedding_dim), dtype=self.compute_dtype)
            for one, feature in zip(given, features, strict=True)
        ]
        return keras.tree.pack_sequence_as(self._feature_configs, specs)

    def get_embedding_tables(self) -> dict[str, Any]:
        """The whole tables, by name."""
        return {name: table.numpy() for name, table in self._tables.items()}

    def get_config(self) -> dict[str, Any]:
        """The configuration that `from_config` takes."""
        tables: list[TableConfig] = []

        def described(feature: FeatureConfig) -> dict[str, Any]:
            if not any(feature.table is table for table in tables):
                tables.append(feature.table)
            place = next(place for place, table in enumerate(tables) if feature.table is table)
            return {**feature.get_config(), "table": place}

        features = keras.tree.map_structure(described, self._feature_configs)
        config = super().get_config()
        config["feature_configs"], config["tables"] = features, [table.get_config() for table in tables]
        return {**config, "table_stacking": self._table_stacking, "update_stats": self._update_stats}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DistributedEmbedding:
        """The layer of what `get_config` gave."""
        config = dict(config)
        tables = [TableConfig.from_config(one) for one in config.pop("tables")]

        def made(node: Any) -> FeatureConfig | None:
            if isinstance(node, dict) and isinstance(node.get("name"), str) and "output_shape" in node:
                return FeatureConfig.from_config({**node, "table": tables[node["table"]]})
            return None

        config["feature_configs"] = keras.tree.traverse(made, config["feature_configs"])
        return cls(**config)


def has_rows(strategy: Strategy) -> bool:
    """True if tables' rows can lie over a strategy's replicas."""
    policy = strategy.extended.variable_policy(VariableSynchronization.ON_WRITE)[0]
    elsewhere = policy.remote or policy.parameter_device is not None or strategy.extended.variable_kind is not Variable
    return not (strategy.is_default or elsewhere)


def _own(ids: Any) -> Any:
    """The ids of a replica's own examples: made-up ones name no row."""
    share = current()
    return ids if share is None or share.rows else jnp.full_like(ids, -1)


def _key(table: str, place: int) -> str:
    """The name in a file of a table, or of a variable of its optimizer. To HDF5 a slash is a folder."""
    return table.replace("/", ".") + (f":{place}" if place else "")


def _is_preprocessed(inputs: Nest) -> bool:
    return isinstance(inputs, dict) and _PREPROCESSED in inputs


def _check_shape(config: FeatureConfig, shape: Sequence[int | None]) -> None:
    wanted = tuple(config.input_shape)
    # The batch of a replica is a part of the global one.
    if len(shape) != len(wanted) or any(
        a != b for a, b in zip(shape[1:], wanted[1:], strict=True) if None not in (a, b)
    ):
        raise ShapeError(
            f"feature {config.name} was given ids of shape {tuple(shape)}, its input_shape is {wanted}. HINT: pass "
            "one list of ids for each example, filled up with -1, or call layer.preprocess."
        )


def _filled(config: FeatureConfig, given: Any, fill: float = -1) -> Any:
    """An array of rows of several lengths as one of equal lengths."""
    if not (isinstance(given, list | tuple) or (isinstance(given, np.ndarray) and given.dtype == object)):
        return given
    if not all(hasattr(row, "__len__") for row in given):
        return np.asarray(given)
    length = config.input_shape[1] if len(config.input_shape) > 1 else None
    length = max(map(len, given), default=0) if length is None else length
    filled = np.full((len(given), length), fill, np.int32 if fill == -1 else np.float32)
    for place, row in enumerate(given):
        filled[place, : min(len(row), length)] = row[:length]
    return filled


def check_rates(layers: Sequence[Any]) -> None:
    """Checks that tables are trained with the learning rates that their optimizers have.

    Raises:
      ArgumentError: one was changed since its layer was made.
    """
    for layer in layers:
        for config, made in layer._rates if isinstance(layer, DistributedEmbedding) and layer.trainable else ():  # pyright: ignore[reportPrivateUsage]
            now = fixed_rate(config.optimizer)
            if now != made:
                raise ArgumentError(
                    f"the learning rate of the table {config.name}'s optimizer is {now}, and was {made} when the layer "
                    "was made, which trains with that. HINT: give TableConfig an optimizer of its own with a schedule, "
                    "such as keras.optimizers.schedules.ExponentialDecay; callbacks do not reach tables."
                )


def tables_of(layers: Sequence[Any]) -> list[tuple[Any, Optimizer]]:
    """The tables that are trained among layers, each with its optimizer."""
    found: list[tuple[Any, Optimizer]] = []
    for layer in layers:
        if isinstance(layer, DistributedEmbedding) and layer.trainable:
            found += [(layer._tables[name], one) for name, one in layer._optimizers.items()]  # pyright: ignore[reportPrivateUsage]
    return found
