"""`tf.compat.v1`: what programs of version 1 that run eagerly use of it."""

from __future__ import annotations

from typing import Any, ClassVar

from jaxtribute._src.addons.compat.catalog.lookup import explain_absent
from jaxtribute._src.addons.compat.tf.functions import enable_eager_execution as enable_eager_execution
from jaxtribute._src.addons.compat.tf.functions import executing_eagerly as executing_eagerly
from jaxtribute.compat import v1 as distribute

__all__ = ["ConfigProto", "distribute", "enable_eager_execution", "enable_v2_behavior", "executing_eagerly"]


class ConfigProto:
    """The settings of a session, kept as attributes and without effect: JAX has no sessions.

    Args:
      **fields: the settings, such as `allow_soft_placement=True`.

    Source: `tf.compat.v1.ConfigProto`.
    """

    def __init__(self, **fields: object) -> None:
        vars(self).update(fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConfigProto) and vars(self) == vars(other)

    __hash__: ClassVar[None] = None  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType] (settings may change)

    def __repr__(self) -> str:
        return f"ConfigProto({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def enable_v2_behavior() -> None:
    """Does nothing: there is no other behaviour. Source: `tf.compat.v1.enable_v2_behavior`."""


def __getattr__(name: str) -> Any:
    raise explain_absent(__name__, "tf.compat.v1", name)
