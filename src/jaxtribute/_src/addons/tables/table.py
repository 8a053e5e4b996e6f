"""`ShardedTable`: a table of embeddings whose rows lie over the replicas."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

import jaxtribute as jd
from jaxtribute import Variable, VariableAggregation, VariableSynchronization
from jaxtribute._src.addons.tables.exchange import unique
from jaxtribute._src.addons.tables.outside import check_outside
from jaxtribute._src.addons.tables.pages import in_large_pages
from jaxtribute._src.addons.tables.policy import TablePolicy
from jaxtribute._src.addons.tables.rows import MOST_STRIPES, Places
from jaxtribute._src.addons.tables.stacking import ROUTES, Route, grouped
from jaxtribute.errors import ArgumentError, ArgumentTypeError, StrategyMixError
from jaxtribute.extending import Context, Overlay, Scatter, Update, operand, overlaid_rows, own, row_ids, settings
from jaxtribute.typing import ArrayLike, DType

if TYPE_CHECKING:
    from jaxtribute._src.addons.tables.exact import CatchUp

_CHUNK = 1 << 16
"""Rows that are initialized at a time: what is needed beside them stays small."""

Initializer = Callable[[jax.Array], jax.Array]
"""A function of the ids of some rows, of shape `(n,)`, that gives them, of shape `(n, width)`."""


class ShardedTable(Variable):
    """A table of embeddings whose rows lie over the replicas of the strategy in whose scope it is made.

    Each replica has a part of the rows, of the table as of an optimizer's slots: a table may be larger than a device.
    Look rows up with `jd.nn.embedding_lookup` in a replica function: the replicas ask each other for the rows that
    they need, each once. Gradients by the table are `jd.IndexedSlices`, which go the same way back when `jd.Optimizer`
    applies them to the touched rows alone. Under `ParameterServerStrategy` it is a variable of the servers, and the
    same lines pull rows from them and push gradients.

    Args:
      rows: the number of rows.
      width: the number of columns.
      initializer: a function of the ids of some rows, an int32 array of shape `(n,)`, that gives them as an array of
        shape `(n, width)`: so no whole table is ever made, and rows do not depend on the number of replicas. Or an
        array of shape `(rows, width)`. By default uniform numbers between -0.05 and 0.05, drawn from `seed`.
      name: a name for messages and checkpoints.
      dtype: the element type.
      trainable: whether optimizers should update it.
      partition: `"striped"` deals the rows out, so that rows that follow each other, which are often those that are
        looked up most, lie on different replicas; `"range"` keeps them together.
      seed: of the default initializer.
      updates: what becomes of rows that a step does not look up, where the optimizer has momentum. `"lazy"`: they and
        their moments wait. `"exact"`: they do what a dense update does to them, made up for when they are next needed;
        what cannot be made up for so, such as weight decay, is an error when the optimizer is made.

    Raises:
      ArgumentError: sizes below 1, an unknown partition or way of updates; an initializer that gives other shapes.
      StrategyMixError: under a strategy that keeps variables on one device, or under `ElasticStrategy`.

    Examples:
      >>> with jd.MirroredStrategy(2).scope():
      ...     table = jd.nn.ShardedTable(1000, 4, lambda ids: jnp.ones((len(ids), 4)))
      >>> table.shape
      (1000, 4)

    Source: the tables of `tf.tpu.experimental.embedding`.
    """

    def __init__(
        self,
        rows: int,
        width: int,
        initializer: Initializer | ArrayLike | None = None,
        *,
        name: str | None = None,
        dtype: DType = "float32",
        trainable: bool = True,
        partition: Literal["striped", "range"] = "striped",
        seed: int = 0,
        updates: Literal["lazy", "exact"] = "lazy",
    ) -> None:
        _check(rows, width, name, trainable, partition, updates)
        strategy = Context.current().strategy
        usual = strategy.extended.variable_policy(VariableSynchronization.ON_WRITE)[0]
        if usual.parameter_device is not None:
            raise StrategyMixError(
                f"jd.nn.ShardedTable under {strategy!r}, which keeps variables on {usual.parameter_device}. HINT: use "
                "jd.Variable there, which jd.nn.embedding_lookup takes as well."
            )
        if strategy.extended.variable_kind is not Variable:
            raise StrategyMixError(
                f"jd.nn.ShardedTable under {strategy!r}, each of whose islands holds all variables, as others may die. "
                "HINT: use jd.Variable there; or MultiWorkerMirroredStrategy, and resize it by a checkpoint."
            )
        mesh = usual.mesh
        replicas = 1 if mesh is None else mesh.size
        stripes = min(MOST_STRIPES, rows) if replicas > 1 and partition == "striped" else 1
        policy = TablePolicy(mesh, Places(rows, replicas, stripes), exact=updates == "exact")
        self._name, self._trainable, self._partition = name or "ShardedTable", trainable, partition
        self._synchronization, self._aggregation = VariableSynchronization.ON_WRITE, VariableAggregation.NONE
        self._strategy, self._policy = strategy, policy
        self._shape, self._dtype = (rows, width), np.dtype(jax.dtypes.canonicalize_dtype(dtype))
        if not jnp.issubdtype(self._dtype, jnp.floating):
            raise ArgumentError(f"dtype is {self._dtype}. HINT: a table is trained; pass a floating dtype.")
        self.followers = weakref.WeakSet()
        if initializer is None:
            initializer = partial(_uniform, width=width, seed=seed)
        self.first_rows = initializer if callable(initializer) else None
        """The function that gives the first rows of ids; None if they were an array."""
        with jax.ensure_compile_time_eval():
            self._data = in_large_pages(self._first(initializer, policy))

    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **options: Any) -> Any:
            """A table; under parameter servers a variable of theirs, whose rows they compute."""
            usual = Context.current().strategy.extended.variable_policy(VariableSynchronization.ON_WRITE)[0]
            if not usual.remote or cls is not ShardedTable:
                return object.__new__(cls)
            given = signature(cls.__init__).bind(None, *args, **options)
            given.apply_defaults()
            return on_servers(*given.args[1:], **given.kwargs)

    def __repr__(self) -> str:
        replicas, kind = self.policy.places.replicas, "exact" if self.policy.exact else "lazy"
        of = f"{self.shape[0]:,} rows of {self.shape[1]} {self.dtype.name}"
        return f"<jd.nn.ShardedTable '{self.name}' of {of}; over {replicas} replica(s), {kind} updates>"

    def __reduce__(self) -> Any:
        """Pickled is what makes such a table again, in the scope of whatever strategy it is loaded in."""
        options = {"partition": self._partition, "updates": "exact" if self.policy.exact else "lazy"}
        return _made_again, (np.asarray(self.read_value()), self._name, self.dtype.name, self._trainable, options)

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardedTable:
        self.settle()
        made = super().__deepcopy__(memo)
        # The optimizer of this table is none of the copy's.
        made._policy = TablePolicy(self.policy.mesh, self.policy.places, exact=self.policy.exact)
        made.followers = weakref.WeakSet()
        return made

    @property
    def policy(self) -> TablePolicy:
        """Storage of the rows; for strategies and optimizers."""
        policy = self._policy
        assert isinstance(policy, TablePolicy)
        return policy

    def _first(self, make: Initializer | ArrayLike, policy: TablePolicy) -> jax.Array:
        """The stored array of the first rows, made part by part."""
        if policy.mesh is not None and policy.mesh.described:
            return policy.stored(jax.ShapeDtypeStruct(self._shape, self._dtype))
        if not callable(make):
            value = np.asarray(make, self._dtype)
            if value.shape != self._shape:
                raise ArgumentError(
                    f"{self._name} has shape {self._shape}, the array of first rows {value.shape}. HINT: pass an array "
                    "of that shape, or a function of ids."
                )
            return policy.place(value)
        found = jax.eval_shape(make, jax.ShapeDtypeStruct((3,), np.int32))
        if getattr(found, "shape", None) != (3, self._shape[1]):
            raise ArgumentError(
                f"the initializer of {self._name} gives {found} for 3 ids. HINT: give an array of shape (3, "
                f"{self._shape[1]}): a row for each id."
            )
        part = partial(_part, make, policy.places, self._dtype)
        if policy.mesh is None or not policy.split:
            return own(jax.jit(lambda: part(np.int32(0)))(), policy.where)
        spec = PartitionSpec(jd.REPLICA_AXIS)
        # Each gets its number: the axis of the mesh has no name here, where operations run at once.
        mapped = policy.mesh.map_replicas(lambda number: part(number[0]), in_specs=(spec,), out_specs=spec)
        return jax.jit(mapped)(np.arange(policy.places.replicas, dtype=np.int32))

    def settle(self) -> None:
        """Brings all rows and their slots up to the present step, of a table with `updates="exact"`.

        Reading the table as a whole, saving and restoring it, and looking at its optimizer's `variables` or `state`, do
        so; all workers must.
        """
        if self.policy.catch_up is not None:
            self.policy.catch_up.settle(self._context().executor)

    def follow(self, catch_up: CatchUp | None) -> None:
        """Catches rows up in this way from now on, in functions that are compiled already, too."""
        self.settle()  # as the optimizer that it had before
        self.policy.follow(catch_up)
        for function in list(self.followers or ()):
            function.turn(object())

    def read_value(self) -> jax.Array:
        """Returns the whole table, on every replica."""
        self.settle()
        return super().read_value()

    _operand = read_value

    def bind(self, array: jax.Array) -> None:
        """Replaces the stored array, as a restore does."""
        super().bind(in_large_pages(array))

    def lease(self) -> Any:
        """Lends the stored array to a save."""
        self.settle()
        return super().lease()

    def _update(self, value: Any, update: Any) -> Any:
        self.settle()
        if update is not Update.ASSIGN and self.policy.split and self._context().replica is None:
            # The stored array has its rows in another order.
            change = jnp.asarray(operand(value), self.dtype)
            value = self.read_value() + (change if update is Update.ADD else -change)
            update = Update.ASSIGN
        super()._update(value, update)
        in_large_pages(self.stored)
        return self

    def _scatter(self, delta: Any, how: Scatter) -> Any:
        if not self.policy.split:
            return super()._scatter(delta, how)
        if self._context().replica is not None:
            return self._update(delta, Update.ADD)  # which says why not
        return self._update(how.apply(self.read_value(), *self._checked_rows(delta, how)), Update.ASSIGN)

    def sparse_read(self, indices: ArrayLike, *, mask: Any = None) -> jax.Array:
        """Returns the rows at `indices`, of shape `(*indices.shape, width)`.

        Args:
          indices: ids of any shape.
          mask: booleans of the same shape: where they are False no row is looked up, and zeros are returned.

        Raises:
          ArgumentError: an id that is known names no row. In a compiled function it gives a row of NaN.
        """
        return self.read_together([self], [indices], [mask])[0]

    @staticmethod
    def read_together(tables: Sequence[ShardedTable], indices: Sequence[Any], masks: Sequence[Any]) -> list[jax.Array]:
        """Returns what `sparse_read` of each table does; tables of one width share an exchange in a compiled step.

        Each row that several of the lookups name is read once.

        Raises:
          TraceError: the function that is differentiated looks rows up by ids of a JAX transformation within it.
        """
        executor = tables[0]._context().executor
        if not isinstance(executor, Overlay):
            return ShardedTable._read_here(tables, indices, masks)
        for table, *given in zip(tables, indices, masks, strict=True):
            executor.noted(table)
            check_outside(executor, table.name, given)
        # In the trace of the whole function, where its gradient is made of the ids, also if they are looked up in a
        # branch, or in the body of a loop.
        return executor.once(tables[0], object(), lambda _: ShardedTable._read_here(tables, indices, masks))

    @staticmethod
    def _read_here(tables: Sequence[ShardedTable], indices: Sequence[Any], masks: Sequence[Any]) -> list[jax.Array]:
        """The rows of lookups, in the trace that is under way."""
        lookups: dict[int, list[int]] = {}
        for number, table in enumerate(tables):
            lookups.setdefault(id(table), []).append(number)
        each = [tables[numbers[0]] for numbers in lookups.values()]
        asked = [
            table._asked([indices[number] for number in numbers], [masks[number] for number in numbers])
            for table, numbers in zip(each, lookups.values(), strict=True)
        ]
        found: dict[int, jax.Array] = {}
        for group in grouped(each):
            together = _Together([each[place] for place in group], [asked[place] for place in group])
            for place in group:
                rows = each[place]._read(asked[place], partial(together.of, group.index(place)))
                found.update(zip(list(lookups.values())[place], asked[place].dealt_out(rows), strict=True))
        return [found[number] for number in range(len(tables))]

    def _asked(self, indices: Sequence[Any], masks: Sequence[Any]) -> _Asked:
        """The distinct rows of some lookups."""
        flat = [self._flat(*one) for one in zip(indices, masks, strict=True)]
        ids = jnp.concatenate([one for one, _ in flat])
        left_out = None
        if any(one is not None for _, one in flat):
            left_out = jnp.concatenate([jnp.zeros(own.shape, bool) if out is None else out for own, out in flat])
        if not ids.shape[0]:
            # A program has no arrays of no rows to sort.
            ids, left_out = jnp.full(1, self.shape[0], np.int32), None
        shapes = [(*np.shape(one), *self.shape[1:]) for one in indices]
        return _Asked(shapes, left_out, *_wanted(self.policy.places, ids, left_out))

    def _flat(self, indices: Any, mask: Any) -> tuple[jax.Array, jax.Array | None]:
        """The checked ids of a lookup, of shape `(n,)`, and which of them are left out."""
        indices = jnp.asarray(indices) if not isinstance(indices, (np.ndarray, jax.Array)) else indices
        if not jnp.issubdtype(indices.dtype, jnp.integer):
            raise ArgumentTypeError(f"ids have dtype {indices.dtype}. HINT: pass integers, ids.astype('int32').")
        if mask is not None:
            # Ids that are known stay so, and are checked.
            known = isinstance(indices, np.ndarray) and isinstance(mask, np.ndarray)
            indices = (np if known else jnp).where(mask, indices, np.zeros((), indices.dtype))
        ids = jnp.asarray(row_ids(indices, self.shape[0], self.name), np.int32).reshape(-1)
        return ids, None if mask is None else ~jnp.asarray(mask).reshape(-1)

    def _read(self, asked: _Asked, read: Callable[[Any], jax.Array]) -> jax.Array:
        """The rows at distinct places, which `read` gets as an executor sees them."""
        executor = self._context().executor
        return overlaid_rows(executor, self, asked.ids, read) if isinstance(executor, Overlay) else read(executor)

    def _fetched(self, executor: Any, places: jax.Array) -> jax.Array:
        """The rows at distinct places, as an executor sees them."""
        policy, context = self.policy, self._context()
        context.strategy.extended.check_variable(self)
        if executor.local and policy.split and not executor.traced:
            return self._met(executor, places)
        arrays = policy.arrays(executor, self)
        # Code of all replicas has the rows of all.
        return policy.rows_for_all(arrays, places) if policy.split else policy.rows(arrays, places)

    def _met(self, executor: Any, places: jax.Array) -> jax.Array:
        """The rows for one of the replicas that run as Python: they meet, and the exchange is a program of them all."""
        count = places.shape[0]
        most = int(np.asarray(executor.all_gather([jnp.full(1, count, np.int32)], 0)[0]).max())
        padded = jnp.pad(places, (0, most - count), constant_values=self.policy.places.stored)

        def fetch(strategy: Any, places: Any) -> Any:
            del strategy
            mesh = self.policy.mesh
            assert mesh is not None
            rows = self.policy.exchanged(self.policy.arrays(Context.current().executor, self), places.data)
            return jd.PerReplica(rows, mesh)

        return executor.merge(fetch, (padded,), {})[:count]


def _made_again(value: Any, name: str, dtype: str, trainable: bool, options: dict[str, Any]) -> ShardedTable:
    rows, width = value.shape
    return ShardedTable(rows, width, value, name=name, dtype=dtype, trainable=trainable, **options)


def _check(rows: Any, width: Any, name: Any, trainable: Any, partition: Any, updates: Any) -> None:
    settings.whole("rows", rows, 1)
    settings.whole("width", width, 1)
    settings.text("name", name, optional=True)
    settings.flag("trainable", trainable)
    if partition not in ("striped", "range"):
        raise ArgumentError(f"partition is {partition!r}. HINT: pass 'striped' or 'range'.")
    if updates not in ("lazy", "exact"):
        raise ArgumentError(f"updates is {updates!r}. HINT: pass 'lazy' or 'exact'.")


def on_servers(
    rows: int,
    width: int,
    initializer: Initializer | ArrayLike | None,
    *,
    name: str | None,
    dtype: DType,
    trainable: bool,
    partition: str,
    seed: int,
    updates: str,
) -> Variable:
    """Makes a table that parameter servers hold, of the arguments of `ShardedTable`; each computes its own first rows.

    Raises:
      ArgumentError: as `ShardedTable` says; or `updates` is exact.
    """
    _check(rows, width, name, trainable, partition, updates)
    if updates == "exact":
        raise ArgumentError(
            f"updates is 'exact' for {name or 'a table'} on parameter servers, which update looked-up rows. HINT: "
            "pass 'lazy', or use a strategy whose replicas hold the table."
        )
    if initializer is not None and not callable(initializer):
        return Variable(np.asarray(initializer), trainable, name or "ShardedTable", dtype)
    first = partial(_rows_of_server, initializer or partial(_uniform, width=width, seed=seed))
    made: Any = partial(first, shape=(rows, width), dtype=np.dtype(jax.dtypes.canonicalize_dtype(dtype)))
    return Variable(made, trainable, name or "ShardedTable")


def _rows_of_server(
    make: Initializer, shape: tuple[int, ...], dtype: Any, shard_info: Any = None
) -> np.ndarray[Any, Any]:
    """The first rows of one server's part, some at a time."""
    start = 0 if shard_info is None else shard_info.offset[0]
    end = start + shape[0]
    ids = [jnp.arange(first, min(first + _CHUNK, end), dtype=np.int32) for first in range(start, end, _CHUNK)]
    return np.concatenate([np.asarray(make(some), dtype) for some in ids])


class _Asked(NamedTuple):
    """The rows of some lookups in a table.

    Attributes:
      shapes: the shapes of their results.
      left_out: True for each id of which zeros are returned; None for none.
      ids: the distinct ids.
      places: their places.
      inverse: for each id that was given the index of its row among them.
      missing: True for each id that names no row.
    """

    shapes: list[tuple[int, ...]]
    left_out: Any
    ids: jax.Array
    places: jax.Array
    inverse: jax.Array
    missing: jax.Array

    def dealt_out(self, rows: jax.Array) -> list[jax.Array]:
        """The row of each id; zeros for those that are left out, NaN for those that name none."""
        found = _dealt_out(rows, self.inverse, self.missing, self.left_out)
        sizes = [math.prod(shape[:-1]) for shape in self.shapes]
        parts = jnp.split(found[: sum(sizes)], np.cumsum(sizes)[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]


class _Together:
    """The rows of lookups in tables that can share an exchange, which is made once for each executor that reads them.

    Args:
      tables: the tables, each once.
      asked: the distinct rows of each.
    """

    def __init__(self, tables: Sequence[ShardedTable], asked: Sequence[_Asked]) -> None:
        self._tables, self._asked = tables, asked
        self._read: list[tuple[Any, list[jax.Array]]] = []

    def of(self, place: int, executor: Any) -> jax.Array:
        """The rows of the table at a place, as an executor sees them."""
        for one, rows in self._read:
            if one is executor:
                return rows[place]
        if executor.local and executor.traced and self._tables[0].policy.split:
            for table in self._tables:
                table._context().strategy.extended.check_variable(table)  # pyright: ignore[reportPrivateUsage]
            policies = [table.policy for table in self._tables]
            places = [one.places for one in self._asked]
            route = Route(policies, places, distinct=True, gathers=executor.gathers)
            ROUTES.add(executor, [one.ids for one in self._asked], route)
            rows = route.rows([table.policy.arrays(executor, table) for table in self._tables])
        else:
            pairs = zip(self._tables, self._asked, strict=True)
            rows = [table._fetched(executor, one.places) for table, one in pairs]  # pyright: ignore[reportPrivateUsage]
        self._read.append((executor, rows))
        return rows[place]


@partial(jax.jit, static_argnums=0)
def _wanted(places: Places, ids: jax.Array, left_out: jax.Array | None) -> tuple[jax.Array, ...]:
    where = places.of_ids(ids)
    missing = where == np.int32(places.stored)
    if left_out is not None:
        where = jnp.where(left_out, np.int32(places.stored), where)
    found = unique(where, places.stored)
    return places.ids_at(found.places), found.places, found.inverse, missing


@jax.jit
def _dealt_out(rows: jax.Array, inverse: jax.Array, missing: jax.Array, left_out: jax.Array | None) -> jax.Array:
    rows = rows[inverse]
    if left_out is not None:
        rows = jnp.where(left_out[:, None], jnp.zeros_like(rows), rows)
    return jnp.where(missing[:, None], jnp.full_like(rows, jnp.nan), rows)


def _part(make: Initializer, places: Places, dtype: Any, replica: Any) -> jax.Array:
    """The first rows of one replica, some at a time; zeros where there is padding."""

    def rows(start: Any, count: int) -> jax.Array:
        ids = places.ids_at(start + lax.iota(np.int32, count))
        known = ids < np.int32(places.rows)
        made = make(jnp.where(known, ids, np.int32(0))).astype(dtype)
        return jnp.where(known[:, None], made, jnp.zeros_like(made))

    first = replica * np.int32(places.part)
    if places.part <= _CHUNK:
        return rows(first, places.part)
    starts = first + lax.iota(np.int32, -(-places.part // _CHUNK)) * np.int32(_CHUNK)
    chunks = lax.map(lambda start: rows(start, _CHUNK), starts)
    return chunks.reshape(-1, chunks.shape[-1])[: places.part]


def _uniform(ids: jax.Array, width: int, seed: int) -> jax.Array:
    """Uniform numbers between -0.05 and 0.05, each row's from its id."""
    key = jax.random.key(seed)
    draw = partial(jax.random.uniform, shape=(width,), minval=-0.05, maxval=0.05)
    return jax.vmap(lambda number: draw(jax.random.fold_in(key, number)))(ids)
