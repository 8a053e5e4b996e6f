"""A little of TensorFlow's `tf`, for programs that use `tf.distribute`: `import jaxtribute.compat.tf as tf`.

Arrays are JAX's, datasets are Grain's, and `tf.distribute` is this library. What a name means here where that is not
what it means in TensorFlow, and what to write for names that are not here, stands in docs/migration.md; `jaxtribute
migrate` finds the places in a program.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any

from jaxtribute._src.addons.compat.catalog.lookup import explain_absent
from jaxtribute._src.addons.compat.tf.control import *
from jaxtribute._src.addons.compat.tf.functions import *
from jaxtribute._src.addons.compat.tf.gradients import *
from jaxtribute._src.addons.compat.tf.indices import *
from jaxtribute._src.addons.compat.tf.math import *
from jaxtribute._src.addons.compat.tf.naming import name_scope as name_scope
from jaxtribute._src.addons.compat.tf.naming import variable_creator_scope as variable_creator_scope
from jaxtribute._src.addons.compat.tf.specs import TensorShape as TensorShape
from jaxtribute._src.addons.compat.tf.specs import TensorSpec as TensorSpec
from jaxtribute._src.addons.compat.tf.tensors import *
from jaxtribute._src.addons.compat.tf.variables import Module as Module
from jaxtribute._src.addons.compat.tf.variables import Variable as Variable
from jaxtribute._src.core.values.enums import VariableAggregation as VariableAggregation
from jaxtribute._src.core.values.enums import VariableSynchronization as VariableSynchronization
from jaxtribute._src.core.values.scatter import IndexedSlices as IndexedSlices
from jaxtribute.compat.tf import compat as compat
from jaxtribute.compat.tf import config as config
from jaxtribute.compat.tf import data as data
from jaxtribute.compat.tf import distribute as distribute
from jaxtribute.compat.tf import errors as errors
from jaxtribute.compat.tf import image as image
from jaxtribute.compat.tf import io as io
from jaxtribute.compat.tf import linalg as linalg
from jaxtribute.compat.tf import math as math
from jaxtribute.compat.tf import nest as nest
from jaxtribute.compat.tf import nn as nn
from jaxtribute.compat.tf import random as random
from jaxtribute.compat.tf import strings as strings
from jaxtribute.compat.tf import tpu as tpu
from jaxtribute.compat.tf import train as train
from jaxtribute.compat.tf.dtypes import *

__version__ = "2.21.0"
"""The TensorFlow whose names these are."""

if _TYPE_CHECKING:
    from jaxtribute.compat.tf import keras as keras
    from jaxtribute.compat.tf import summary as summary


def __getattr__(name: str) -> Any:
    if name in ("keras", "summary"):
        return _import_module(f"jaxtribute.compat.tf.{name}")
    if name in ("initializers", "losses", "metrics", "optimizers"):
        return getattr(_import_module("jaxtribute.compat.tf.keras"), name)
    raise explain_absent(__name__, "tf", name)
