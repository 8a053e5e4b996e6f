"""A little of `tf.random`. The numbers are not TensorFlow's: no other library has its generators."""

from typing import Any

from jaxtribute._src.addons.compat.catalog.lookup import explain_absent as _explain_absent
from jaxtribute._src.addons.compat.tf.random import *


def __getattr__(name: str) -> Any:
    raise _explain_absent(__name__, "tf.random", name)
