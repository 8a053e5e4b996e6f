"""Files of Hugging Face's safetensors, written from a strategy's layout and read into it.

No process ever holds more than its own shards and one tensor: each reads its part of a tensor, and writes its part into
the one file, which must therefore be on a disk that all workers share. Needs the extra `jaxtribute[safetensors]`.
"""

from jaxtribute._src.addons.models.safetensors import load, save, weights
from jaxtribute._src.public import publish as _publish

__all__ = [
    "load",
    "save",
    "weights",
]

_publish(__name__)
