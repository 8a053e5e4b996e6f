"""`jd.nn`: losses averaged over the global batch, and lookups in tables that are cut over the devices."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from jaxtribute._src.losses import compute_average_loss, scale_regularization_loss
from jaxtribute._src.public import lazy_names as _lazy_names
from jaxtribute._src.public import publish as _publish

if _TYPE_CHECKING:
    from jaxtribute._src.addons.tables.lookup import embedding_lookup as embedding_lookup
    from jaxtribute._src.addons.tables.table import ShardedTable as ShardedTable
    from jaxtribute._src.addons.tables.vocabulary import DynamicVocabulary as DynamicVocabulary

__all__ = [
    "DynamicVocabulary",
    "ShardedTable",
    "compute_average_loss",
    "embedding_lookup",
    "scale_regularization_loss",
]

_publish(__name__)
_lazy_names(__name__)
