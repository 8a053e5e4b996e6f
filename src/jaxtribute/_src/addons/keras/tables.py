"""Tables in a step of a Keras model: their gradients by rows, and the optimizers that they have of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jaxtribute as jd
from jaxtribute._src.addons.keras import internals
from jaxtribute._src.addons.keras.internals import KerasModel, KerasVariable
from jaxtribute._src.addons.keras.share import Share
from jaxtribute.errors import ArgumentError
from jaxtribute.typing import Foreign


@dataclass
class Tables:
    """The tables that a model trains.

    Attributes:
      trained: each with the optimizer that updates it.
    """

    trained: list[tuple[Any, Any]]

    @classmethod
    def of(cls, model: KerasModel, *, own: bool) -> Tables:
        """Those of a model.

        Args:
          model: the model.
          own: whether it has a training step of its own.

        Raises:
          ArgumentError: its step cannot train them.
        """
        embedding = _embedding()
        tables = cls([] if embedding is None else embedding.tables_of(internals.parts_of(model)))
        scaled = getattr(getattr(model, "optimizer", None), "inner_optimizer", None)
        if tables.trained and (own or scaled is not None):
            names = ", ".join(table.name.removesuffix(":0") for table, _ in tables.trained)
            what = f"a train_step of {type(model).__name__}'s own" if own else "an optimizer that scales losses"
            raise ArgumentError(
                f"the model has tables over the replicas, {names}, and {what}, which knows no gradients by rows. HINT: "
                "use Keras's own step and a plain optimizer, or TableConfig(placement='default_device'), or write the "
                "loop with jd.nn.embedding_lookup."
            )
        return tables

    @staticmethod
    def checked(model: KerasModel, step: Callable[..., Any]) -> Callable[..., Any]:
        """A step of a model, before which the learning rates of its tables are checked, if it has some."""
        embedding, layers = _embedding(), internals.parts_of(model)
        if embedding is None or not embedding.tables_of(layers):
            return step

        def checked(*args: Any) -> Any:
            embedding.check_rates(layers)
            return step(*args)

        return checked

    def differentiated(
        self, loss: Callable[[], tuple[Any, Any]], trainable: Sequence[KerasVariable], share: Share
    ) -> tuple[Any, list[Any]]:
        """A loss's further results and gradients by Keras's variables; those by tables are kept for `apply`.

        Args:
          loss: reads Keras's variables, and looks rows up.
          trainable: the variables.
          share: the replica's part of the batch.
        """

        def begun() -> tuple[Any, Any]:
            # It is traced twice, the first time to learn which rows are looked up.
            share.added.clear()
            return loss()

        stored = [variable.stored for variable in trainable]
        tables = [table for table, _ in self.trained]
        (_, aux), gradients = jd.value_and_grad(begun, [*stored, *tables], has_aux=True)()
        share.of_tables = gradients[len(stored) :]
        return aux, gradients[: len(stored)]

    def apply(self, share: Share) -> None:
        """Updates the rows that the replicas' examples name."""
        for (_, optimizer), gradient in zip(self.trained, share.of_tables, strict=True):
            optimizer.apply_gradients([gradient], None if share.alone else "SUM")


def has_tables(layer: Foreign) -> bool:
    """True if a layer is a `DistributedEmbedding`."""
    embedding = _embedding()
    return embedding is not None and type(layer) is embedding.DistributedEmbedding


def _embedding() -> Any:
    """The module of layers with tables; None if nothing has loaded it, so that there are none."""
    return sys.modules.get("jaxtribute._src.addons.keras.embedding")
