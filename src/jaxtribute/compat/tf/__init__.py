"""A little of TensorFlow's `tf`, for programs that use `tf.distribute`: `import jaxtribute.compat.tf as tf`.

Arrays are JAX's, datasets are Grain's, and `tf.distribute` is this library. What a name means here where that is not
what it means in TensorFlow, and what to write for names that are not here, stands in docs/migration.md; `jaxtribute
migrate` finds the places in a program.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any

from jaxtribute._src.compat.absent import explain_absent
from jaxtribute._src.compat.tf.functions import cond as cond
from jaxtribute._src.compat.tf.functions import control_dependencies as control_dependencies
from jaxtribute._src.compat.tf.functions import device as device
from jaxtribute._src.compat.tf.functions import enable_eager_execution as enable_eager_execution
from jaxtribute._src.compat.tf.functions import executing_eagerly as executing_eagerly
from jaxtribute._src.compat.tf.functions import function as function
from jaxtribute._src.compat.tf.functions import group as group
from jaxtribute._src.compat.tf.functions import name_scope as name_scope
from jaxtribute._src.compat.tf.functions import no_op as no_op
from jaxtribute._src.compat.tf.functions import print as print
from jaxtribute._src.compat.tf.functions import while_loop as while_loop
from jaxtribute._src.compat.tf.modules import Module as Module
from jaxtribute._src.compat.tf.specs import TensorShape as TensorShape
from jaxtribute._src.compat.tf.specs import TensorSpec as TensorSpec
from jaxtribute._src.compat.tf.tensors import Tensor as Tensor
from jaxtribute._src.compat.tf.tensors import cast as cast
from jaxtribute._src.compat.tf.tensors import concat as concat
from jaxtribute._src.compat.tf.tensors import constant as constant
from jaxtribute._src.compat.tf.tensors import convert_to_tensor as convert_to_tensor
from jaxtribute._src.compat.tf.tensors import expand_dims as expand_dims
from jaxtribute._src.compat.tf.tensors import eye as eye
from jaxtribute._src.compat.tf.tensors import fill as fill
from jaxtribute._src.compat.tf.tensors import gather as gather
from jaxtribute._src.compat.tf.tensors import identity as identity
from jaxtribute._src.compat.tf.tensors import is_tensor as is_tensor
from jaxtribute._src.compat.tf.tensors import linspace as linspace
from jaxtribute._src.compat.tf.tensors import newaxis as newaxis
from jaxtribute._src.compat.tf.tensors import one_hot as one_hot
from jaxtribute._src.compat.tf.tensors import ones as ones
from jaxtribute._src.compat.tf.tensors import ones_like as ones_like
from jaxtribute._src.compat.tf.tensors import pad as pad
from jaxtribute._src.compat.tf.tensors import range as range
from jaxtribute._src.compat.tf.tensors import rank as rank
from jaxtribute._src.compat.tf.tensors import reshape as reshape
from jaxtribute._src.compat.tf.tensors import shape as shape
from jaxtribute._src.compat.tf.tensors import size as size
from jaxtribute._src.compat.tf.tensors import split as split
from jaxtribute._src.compat.tf.tensors import squeeze as squeeze
from jaxtribute._src.compat.tf.tensors import stack as stack
from jaxtribute._src.compat.tf.tensors import stop_gradient as stop_gradient
from jaxtribute._src.compat.tf.tensors import tile as tile
from jaxtribute._src.compat.tf.tensors import transpose as transpose
from jaxtribute._src.compat.tf.tensors import unstack as unstack
from jaxtribute._src.compat.tf.tensors import where as where
from jaxtribute._src.compat.tf.tensors import zeros as zeros
from jaxtribute._src.compat.tf.tensors import zeros_like as zeros_like
from jaxtribute._src.compat.tf.variables import Variable as Variable
from jaxtribute._src.values.enums import VariableAggregation as VariableAggregation
from jaxtribute._src.values.enums import VariableSynchronization as VariableSynchronization
from jaxtribute.compat.tf import compat as compat
from jaxtribute.compat.tf import config as config
from jaxtribute.compat.tf import data as data
from jaxtribute.compat.tf import distribute as distribute
from jaxtribute.compat.tf import errors as errors
from jaxtribute.compat.tf import io as io
from jaxtribute.compat.tf import linalg as linalg
from jaxtribute.compat.tf import math as math
from jaxtribute.compat.tf import nest as nest
from jaxtribute.compat.tf import nn as nn
from jaxtribute.compat.tf import random as random
from jaxtribute.compat.tf import tpu as tpu
from jaxtribute.compat.tf import train as train
from jaxtribute.compat.tf.dtypes import DType as DType
from jaxtribute.compat.tf.dtypes import as_dtype as as_dtype
from jaxtribute.compat.tf.dtypes import bfloat16 as bfloat16
from jaxtribute.compat.tf.dtypes import bool as bool
from jaxtribute.compat.tf.dtypes import complex64 as complex64
from jaxtribute.compat.tf.dtypes import complex128 as complex128
from jaxtribute.compat.tf.dtypes import double as double
from jaxtribute.compat.tf.dtypes import float16 as float16
from jaxtribute.compat.tf.dtypes import float32 as float32
from jaxtribute.compat.tf.dtypes import float64 as float64
from jaxtribute.compat.tf.dtypes import half as half
from jaxtribute.compat.tf.dtypes import int8 as int8
from jaxtribute.compat.tf.dtypes import int16 as int16
from jaxtribute.compat.tf.dtypes import int32 as int32
from jaxtribute.compat.tf.dtypes import int64 as int64
from jaxtribute.compat.tf.dtypes import string as string
from jaxtribute.compat.tf.dtypes import uint8 as uint8
from jaxtribute.compat.tf.dtypes import uint16 as uint16
from jaxtribute.compat.tf.dtypes import uint32 as uint32
from jaxtribute.compat.tf.dtypes import uint64 as uint64
from jaxtribute.compat.tf.math import abs as abs
from jaxtribute.compat.tf.math import add as add
from jaxtribute.compat.tf.math import add_n as add_n
from jaxtribute.compat.tf.math import argmax as argmax
from jaxtribute.compat.tf.math import argmin as argmin
from jaxtribute.compat.tf.math import clip_by_value as clip_by_value
from jaxtribute.compat.tf.math import cos as cos
from jaxtribute.compat.tf.math import divide as divide
from jaxtribute.compat.tf.math import einsum as einsum
from jaxtribute.compat.tf.math import equal as equal
from jaxtribute.compat.tf.math import exp as exp
from jaxtribute.compat.tf.math import floor as floor
from jaxtribute.compat.tf.math import greater as greater
from jaxtribute.compat.tf.math import greater_equal as greater_equal
from jaxtribute.compat.tf.math import less as less
from jaxtribute.compat.tf.math import less_equal as less_equal
from jaxtribute.compat.tf.math import logical_and as logical_and
from jaxtribute.compat.tf.math import logical_not as logical_not
from jaxtribute.compat.tf.math import logical_or as logical_or
from jaxtribute.compat.tf.math import matmul as matmul
from jaxtribute.compat.tf.math import maximum as maximum
from jaxtribute.compat.tf.math import minimum as minimum
from jaxtribute.compat.tf.math import multiply as multiply
from jaxtribute.compat.tf.math import negative as negative
from jaxtribute.compat.tf.math import norm as norm
from jaxtribute.compat.tf.math import not_equal as not_equal
from jaxtribute.compat.tf.math import pow as pow
from jaxtribute.compat.tf.math import reduce_all as reduce_all
from jaxtribute.compat.tf.math import reduce_any as reduce_any
from jaxtribute.compat.tf.math import reduce_logsumexp as reduce_logsumexp
from jaxtribute.compat.tf.math import reduce_max as reduce_max
from jaxtribute.compat.tf.math import reduce_mean as reduce_mean
from jaxtribute.compat.tf.math import reduce_min as reduce_min
from jaxtribute.compat.tf.math import reduce_prod as reduce_prod
from jaxtribute.compat.tf.math import reduce_sum as reduce_sum
from jaxtribute.compat.tf.math import round as round
from jaxtribute.compat.tf.math import sigmoid as sigmoid
from jaxtribute.compat.tf.math import sign as sign
from jaxtribute.compat.tf.math import sin as sin
from jaxtribute.compat.tf.math import sqrt as sqrt
from jaxtribute.compat.tf.math import square as square
from jaxtribute.compat.tf.math import subtract as subtract
from jaxtribute.compat.tf.math import tanh as tanh
from jaxtribute.compat.tf.math import tensordot as tensordot

__version__ = "2.21.0"
"""The TensorFlow whose names these are."""

if _TYPE_CHECKING:
    from jaxtribute.compat.tf import keras as keras


def __getattr__(name: str) -> Any:
    if name == "keras":
        return _import_module("jaxtribute.compat.tf.keras")
    if name in ("initializers", "losses", "metrics", "optimizers"):
        return getattr(_import_module("jaxtribute.compat.tf.keras"), name)
    raise explain_absent(__name__, "tf", name)
