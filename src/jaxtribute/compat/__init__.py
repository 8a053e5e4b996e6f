"""For programs that come from TensorFlow: `compat.v1` is `tf.compat.v1.distribute`, `compat.tf` a little of `tf`."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from jaxtribute._src.public import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from jaxtribute.compat import tf as tf
    from jaxtribute.compat import v1 as v1

_lazy_names(__name__)
