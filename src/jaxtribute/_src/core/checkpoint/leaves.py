"""The values that a checkpoint keeps, one by one: how each is taken out, and put back in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Sharding

from jaxtribute._src.core.checkpoint.forms import ROWS, STRIPED, VALUE, Spec, dtype_of, spec_of, to_rows, to_value
from jaxtribute._src.core.types import Array, HostArray
from jaxtribute._src.core.values.placing import own
from jaxtribute._src.core.values.stored import Lease, updating
from jaxtribute._src.core.values.variable import Variable


class Leaf(Protocol):
    """A value of a checkpoint."""

    @property
    def spec(self) -> Spec:
        """The present value."""
        ...

    def snapshot(self) -> Lease | HostArray:
        """The value as it is now, which nobody changes any more: on its devices, or on the host if all have it."""
        ...

    def placement(self, saved: Spec) -> tuple[tuple[int, ...], Sharding] | None:
        """The shape and the placement to read it with, so that each device gets its own part; None for the host."""
        ...

    def put(self, value: Array | HostArray, saved: Spec) -> None:
        """Takes what was read: an array with that placement, or what is stored as an array on the host."""
        ...

    def keep(self) -> Callable[[], None]:
        """Notes what is there now; returns what puts it back."""
        ...


class VariableLeaf:
    """A variable."""

    def __init__(self, variable: Variable) -> None:
        self._variable = variable

    @property
    def spec(self) -> Spec:
        """Its shape, dtype and form."""
        variable = self._variable
        if variable.policy.by_rows:
            variable.lease().give_back()  # brings a table's rows up to the present step, before other values change
        spec = Spec(variable.shape, str(variable.dtype), variable.policy.form)
        if spec.form == STRIPED:
            return replace(spec, rows=variable.policy.stripes)
        if spec.form != ROWS:
            return spec
        return replace(spec, rows=variable.stored.shape[0], aggregation=variable.aggregation.name)

    def snapshot(self) -> Lease | HostArray:
        """Its array, on loan."""
        lease = self._variable.lease()
        array = self._variable.stored
        if jax.process_count() > 1 and array.is_fully_addressable:
            host = np.asarray(array).copy()  # a variable of no strategy, which every process has
            lease.give_back()
            return host
        return lease

    def placement(self, saved: Spec) -> tuple[tuple[int, ...], Sharding] | None:
        """That of the array, if what is saved is in the same form."""
        stored, form = self._variable.stored, self._variable.policy.form
        # A scalar has no rows.
        rows = {ROWS: stored.shape[:1] and stored.shape[0], STRIPED: self._variable.policy.stripes}
        same = saved.form == form and saved.rows == rows.get(form, saved.rows)
        return (stored.shape, stored.sharding) if same and stored.committed else None

    def put(self, value: Array | HostArray, saved: Spec) -> None:
        """Binds the variable to the value."""
        variable, policy = self._variable, self._variable.policy
        if isinstance(value, jax.Array):
            # A copy in memory of the devices' own: what was read may lie where the reader put it, and no step can take
            # that over.
            variable.bind(value.copy())
        elif policy.form != ROWS:
            variable.bind(policy.place(to_value(value, saved)))
        else:
            stored = variable.stored
            rows = to_rows(to_value(value, saved), stored.shape[0], variable.aggregation.name)
            variable.bind(own(rows, stored.sharding))

    def keep(self) -> Callable[[], None]:
        """Keeps the array: no step gives it up once the variable has another."""
        variable, array = self._variable, self._variable.stored

        def back() -> None:
            with updating:
                variable.bind(array)
                variable.peek()  # whoever read the variable before may hold the array yet

        return back


class CellLeaf:
    """A value that is read and written by functions: an array in a nest, or a variable of another library.

    Args:
      get: returns the array, or a Python number.
      set_: takes a new one.
    """

    def __init__(self, get: Callable[[], Any], set_: Callable[[Any], None]) -> None:
        self._get, self._set = get, set_

    @property
    def spec(self) -> Spec:
        """The value's shape and dtype."""
        return spec_of(self._get())

    def snapshot(self) -> Lease | HostArray:
        """A copy: the program may change or donate the original at any time."""
        value = self._get()
        # A file needs one writer: of an array that every process has for itself, the first process writes its own.
        if isinstance(value, jax.Array):
            data = jax.random.key_data(value) if self.spec.key else value
            if not (jax.process_count() > 1 and data.is_fully_addressable):
                return Lease(data.copy())
            value = data
        return np.array(value)

    def placement(self, saved: Spec) -> tuple[tuple[int, ...], Sharding] | None:
        """That of the array, if it is bound to its devices."""
        value = self._get()
        if isinstance(value, jax.Array) and value.committed and not saved.key and saved.form == VALUE:
            return value.shape, value.sharding
        return None

    def put(self, value: Array | HostArray, saved: Spec) -> None:
        """Hands the value over as what was there: an array of JAX or NumPy, a random key, or a number."""
        old = self._get()
        if isinstance(value, jax.Array):
            self._set(value.copy())
            return
        value = to_value(np.asarray(value), saved).astype(dtype_of(saved.dtype), copy=False)
        if saved.key:
            data = jax.random.key_data(old)
            self._set(jax.random.wrap_key_data(own(value, data.sharding if old.committed else None), impl=saved.key))
        elif isinstance(old, jax.Array):
            self._set(own(value, old.sharding if old.committed else None))
        elif isinstance(old, (bool, int, float)):
            self._set(type(old)(value.item()))
        else:
            # One of NumPy's scalars becomes one again, and no array without axes.
            self._set(value if isinstance(old, np.ndarray) else value[()])

    def keep(self) -> Callable[[], None]:
        """Keeps the value itself."""
        old = self._get()
        if isinstance(old, np.ndarray):
            old = old.copy()  # a library may write into its own
        return lambda: self._set(old)
