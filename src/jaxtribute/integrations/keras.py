"""Parts of Keras that need TensorFlow there and do not here: lookups, `TextVectorization` and `TensorBoard`.

`shards` shows how parameter servers hold a layer's variables; `Verify` is a callback that verifies the steps of `fit`.
`jaxtribute.compat.tf` has the others under TensorFlow's names. Needs the extra `jaxtribute[keras]`.
"""

from jaxtribute._src.addons.keras.callbacks import TensorBoard
from jaxtribute._src.addons.keras.lookups import IntegerLookup, StringLookup
from jaxtribute._src.addons.keras.text import TextVectorization
from jaxtribute._src.addons.keras.variables import shards
from jaxtribute._src.addons.verify.fitting import Verify
from jaxtribute._src.public import publish as _publish

__all__ = [
    "IntegerLookup",
    "StringLookup",
    "TensorBoard",
    "TextVectorization",
    "Verify",
    "shards",
]

_publish(__name__)
