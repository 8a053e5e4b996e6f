from typing import Any, TypeAlias

from jaxlib._jax import pytree as pytree

Device: TypeAlias = Any  # its attributes: `jaxtribute.typing.Device`

def __getattr__(name: str) -> Any: ...
