"""Parts of Keras that need TensorFlow there and do not here: lookups of strings and integers, and `TensorBoard`.

`jaxtribute.compat.tf` has them under TensorFlow's names. Needs the extra `jaxtribute[keras]`.
"""

from jaxtribute._src.integrations.keras.callbacks import TensorBoard
from jaxtribute._src.integrations.keras.lookups import IntegerLookup, StringLookup
from jaxtribute._src.public import publish as _publish

__all__ = [
    "IntegerLookup",
    "StringLookup",
    "TensorBoard",
]

_publish(__name__)
