"""Parts of Keras that need TensorFlow there and do not here: lookups, `TextVectorization` and `TensorBoard`.

`DistributedEmbedding`, `TableConfig` and `FeatureConfig` are those of keras-rs, on CPUs, GPUs and TPUs.

`shards` shows how parameter servers hold a layer's variables; `Verify` is a callback that verifies the steps of `fit`.
`jaxtribute.compat.tf` has the others under TensorFlow's names. Needs the extra `jaxtribute[keras]`.
"""

import os as _os

_os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras's own default is TensorFlow

from jaxtribute._src.addons.keras.callbacks import TensorBoard
from jaxtribute._src.addons.keras.embedding import DistributedEmbedding
from jaxtribute._src.addons.keras.lookups import IntegerLookup, StringLookup
from jaxtribute._src.addons.keras.table_configs import FeatureConfig, TableConfig
from jaxtribute._src.addons.keras.text import TextVectorization
from jaxtribute._src.addons.keras.variables import shards
from jaxtribute._src.addons.verify.fitting import Verify
from jaxtribute._src.core import context as _contexts
from jaxtribute._src.public import publish as _publish

__all__ = [
    "DistributedEmbedding",
    "FeatureConfig",
    "IntegerLookup",
    "StringLookup",
    "TableConfig",
    "TensorBoard",
    "TextVectorization",
    "Verify",
    "shards",
]

_publish(__name__)

# Outside of scopes, too, models of strings look them up on the host.
_contexts.announce()
