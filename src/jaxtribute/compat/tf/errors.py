"""`tf.errors`: the errors of this library that stand for TensorFlow's."""

from jaxtribute.errors import ArgumentError as InvalidArgumentError
from jaxtribute.errors import JaxtributeError as OpError
from jaxtribute.errors import OutOfRangeError as OutOfRangeError

__all__ = ["InvalidArgumentError", "OpError", "OutOfRangeError"]
