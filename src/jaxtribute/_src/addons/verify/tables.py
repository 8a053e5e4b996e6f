"""The stand-in for `jd.nn.ShardedTable`: a whole variable on every replica, with the gradient of a whole variable.

Rows that no example looks up get a gradient of zero. Slots are as they begin, as those of parameter servers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any
from unittest import mock

from jaxtribute import Optimizer, Variable
from jaxtribute._src.addons.verify.machine import CannotVerify
from jaxtribute._src.addons.verify.updating import applied
from jaxtribute.nn import ShardedTable

_KEPT = frozenset({"__init__", "__new__", "__deepcopy__", "__reduce__"})
_MOST = 1 << 20
"""Numbers of a table that is evaluated in 64 bits for several replicas."""


@contextmanager
def whole_tables(variables: Iterable[Variable]) -> Generator[None]:
    """Lets tables be plain variables, until the block ends.

    Raises:
      CannotVerify: a table is too large for that.
    """
    tables = [variable for variable in variables if isinstance(variable, ShardedTable)]
    for table in tables:
        if table.size > _MOST:
            raise CannotVerify(
                f"{table.name} has {table.size:,} numbers. HINT: verify the program with a table of at most {_MOST:,}."
            )
    with ExitStack() as stack:
        for name, own in list(vars(ShardedTable).items()) if tables else ():
            if isinstance(own, FunctionType | property) and hasattr(Variable, name) and name not in _KEPT:
                stack.enter_context(mock.patch.object(ShardedTable, name, getattr(Variable, name)))
        if tables:
            stack.enter_context(mock.patch.object(Optimizer, "apply_gradients", applied(_has_tables)))
        yield


def _has_tables(optimizer: Any) -> bool:
    return any(isinstance(variable, ShardedTable) for variable in optimizer.trainable_variables)
