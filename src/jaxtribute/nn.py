"""`jd.nn`: losses averaged over the global batch, and lookups in tables that are cut over the devices."""

from jaxtribute._src.core.nn import compute_average_loss, embedding_lookup, scale_regularization_loss
from jaxtribute._src.public import publish as _publish

__all__ = [
    "compute_average_loss",
    "embedding_lookup",
    "scale_regularization_loss",
]

_publish(__name__)
