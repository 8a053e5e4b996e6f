"""Storage of a table: an equal part of its rows in each replica."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import jaxtribute as jd
from jaxtribute._src.addons.tables.rows import Places
from jaxtribute._src.addons.tables.stacking import Route
from jaxtribute._src.addons.tables.updates import RowUpdates
from jaxtribute.errors import VariableError
from jaxtribute.extending import Policy, ReplicaMesh, own

if TYPE_CHECKING:
    from jaxtribute import Variable
    from jaxtribute._src.addons.tables.exact import CatchUp


class TablePolicy(Policy):
    """Rows that lie over the replicas, and slots of an optimizer beside them.

    Args:
      mesh: the devices of each replica; None outside of every strategy.
      places: where the rows are.
      exact: whether rows that a step leaves alone do what a dense update does to them.
    """

    label = "ShardedTable"
    by_rows = True

    stripes: int
    split: bool
    catch_up: CatchUp | None = None
    """The steps that rows have missed, of a table that is updated exactly by an optimizer under which rows move on."""

    updater: Callable[[], RowUpdates | None] = staticmethod(lambda: None)
    """Gives what updates the table exactly, while it is there."""

    def __init__(self, mesh: ReplicaMesh | None, places: Places, *, exact: bool = False) -> None:
        self._mesh, self.places, self.exact = mesh, places, exact
        self.stripes, self.split = places.stripes, places.replicas > 1
        self.writes = type(self.writes).OWN
        self.updates: weakref.WeakKeyDictionary[RowUpdates, None] = weakref.WeakKeyDictionary()
        """The parts of optimizers that update the table."""

    @property
    def mesh(self) -> ReplicaMesh | None:
        """The replicas' devices, if a strategy placed the table."""
        return self._mesh

    @property
    def form(self) -> str:
        """Striped, unless the stored array is the table."""
        return "striped" if self.split else "value"

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """That of all parts together."""
        return (self.places.stored, *shape[1:])

    def local_shape(self, variable: Variable) -> tuple[int, ...]:
        """One replica's part."""
        return (self.places.part, *variable.shape[1:])

    def place(self, value: Any) -> jax.Array:
        """A part of the rows on each replica; of a table on the host no device ever holds more."""
        if not self.split:
            return own(value, self.where)
        host = not isinstance(value, jax.Array)
        return own(self.places.stored_of(np.asarray(value), np) if host else self.pieces(value), self.where)

    def value(self, array: Any) -> Any:
        """The table whose rows are stored."""
        return self.places.value_of(array) if self.split else array

    def pieces(self, value: Any) -> Any:
        """The stored array of a table."""
        return self.places.stored_of(jnp.asarray(value)) if self.split else value

    def read_by_python(self, array: Any, variable: Variable) -> Any:
        """The whole table, on each replica's device."""
        del variable
        mesh = self._mesh
        if mesh is None or not self.split:
            return array
        with jax.disable_jit(False):
            return jax.jit(self.places.value_of, out_shardings=mesh.replicated)(array)

    def component(self, part: Any, variable: Variable) -> Any:
        """The gradient of a replica, which is rows; a part is none that user code sees.

        Raises:
          VariableError: the table is read in a replica function.
        """
        if isinstance(part, jd.IndexedSlices) or not self.split:
            return part
        raise VariableError(
            f"{variable.name} is a table whose rows lie over {self.places.replicas} replicas: a replica function reads "
            f"it by ids. HINT: jd.nn.embedding_lookup({variable.name.removesuffix(':0')}, ids)."
        )

    def written_by_one(self, value: Any, variable: Variable) -> Any:
        """Refuses a write by a replica.

        Raises:
          VariableError: always.
        """
        raise VariableError(
            f"{variable.name} is a table, which a replica function cannot assign. HINT: update it by jd.Optimizer, or "
            "assign it outside of strategy.run."
        )

    def row_updates(self, optimizer: Any, update: Any, parameters: Any, slots: Any, options: Any) -> RowUpdates:
        """The updates of touched rows, of this table and of all others of the optimizer."""
        return RowUpdates(optimizer, update, parameters, slots, options)

    def arrays(self, executor: Any, table: Variable) -> list[Any]:
        """The arrays that `rows` takes of a table, as an executor sees them."""
        return [executor.get(table)] if self.catch_up is None else self.catch_up.arrays(executor)

    def rows(self, arrays: Sequence[Any], places: jax.Array) -> jax.Array:
        """The present rows at places of a part, or of the whole."""
        if self.catch_up is None:
            return arrays[0].at[places].get(mode="fill", fill_value=0)
        return self.catch_up.rows(arrays, places)[0]

    def follow(self, catch_up: CatchUp | None) -> None:
        """Catches rows up in this way from now on, and forgets the programs that look them up in another."""
        self.catch_up = catch_up
        for name in ("rows_for_all", "exchanged"):
            vars(self).pop(name, None)

    @cached_property
    def rows_for_all(self) -> Callable[..., jax.Array]:
        """`rows` as a program of all replicas, for code that has the rows of all."""
        assert self._mesh is not None
        # Not `self.rows`: JAX takes what is equal for the same, and this method reads `catch_up` when it is traced.
        return jax.jit(partial(self.rows), out_shardings=self._mesh.replicated)

    @cached_property
    def exchanged(self) -> Callable[..., jax.Array]:
        """The program that gives the rows of all replicas, behind each other, for the places of each."""

        def exchanged(arrays: Sequence[Any], places: jax.Array) -> jax.Array:
            assert self._mesh is not None
            spec = PartitionSpec(jd.REPLICA_AXIS)
            # Counts of steps, scalars, are the same for all.
            parts = [spec if array.ndim else PartitionSpec() for array in arrays]
            fetch = self._mesh.map_replicas(self.rows_from_all, in_specs=(parts, spec), out_specs=spec)
            return fetch(list(arrays), places)

        return jax.jit(exchanged)

    def rows_from_all(self, arrays: Sequence[Any], places: jax.Array) -> jax.Array:
        """The rows for one replica's places, in its program."""
        return Route([self], [places], distinct=True).rows([arrays])[0]
