"""Names for other libraries: `jaxtribute.integrations.keras` and `jaxtribute.integrations.safetensors`."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from jaxtribute._src.public import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from jaxtribute.integrations import keras as keras
    from jaxtribute.integrations import safetensors as safetensors

_lazy_names(__name__)
