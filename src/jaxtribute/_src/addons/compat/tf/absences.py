"""Members of TensorFlow's objects that those here lack: asked for at run time, the error says what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never, TypeVar

import jaxtribute as jd
from jaxtribute._src.addons.compat.catalog.members import absent_from
from jaxtribute.checkpoint import RestoreStatus
from jaxtribute.input import Optional

T = TypeVar("T")


class _Absent:
    """A member that there is not, of which `hasattr` says so too.

    Args:
      told: the error's text.
      name: the member.
    """

    def __init__(self, told: str, name: str) -> None:
        self._told, self._name = told, name

    def __get__(self, instance: Any, owner: type) -> Never:
        raise AttributeError(self._told, name=self._name, obj=instance)


def telling_absent(of: str) -> Callable[[type[T]], type[T]]:
    """Returns a decorator for the class whose objects stand for those of TensorFlow's class `of`."""

    # Not `__getattr__`: a class that has one reads all its attributes more slowly.
    def tell(cls: type[T]) -> type[T]:
        for name, remedy in absent_from(of).items():
            if not hasattr(cls, name):
                setattr(cls, name, _Absent(f"{of} has no {name!r} here. HINT: {remedy}.", name))
        return cls

    return tell


# The library's own, which `compat.tf` has as they are.
for _of, _cls in {
    "tf.Variable": jd.Variable,
    "tf.distribute.DistributedDataset": jd.DistributedDataset,
    "tf.distribute.DistributedIterator": jd.DistributedIterator,
    "tf.IndexedSlices": jd.IndexedSlices,
    "tf.experimental.Optional": Optional,
    "tf.train.RestoreStatus": RestoreStatus,
    "tf.errors.OpError": jd.errors.JaxtributeError,
}.items():
    telling_absent(_of)(_cls)
