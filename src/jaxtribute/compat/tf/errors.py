"""`tf.errors`: the errors of this library and of Python that stand for TensorFlow's."""

from builtins import FileExistsError as AlreadyExistsError
from builtins import FileNotFoundError as NotFoundError
from builtins import NotImplementedError as UnimplementedError
from builtins import PermissionError as PermissionDeniedError

from jaxtribute.errors import ArgumentError as InvalidArgumentError
from jaxtribute.errors import CancelledError as CancelledError
from jaxtribute.errors import ClusterError as UnavailableError
from jaxtribute.errors import DeadlineError as DeadlineExceededError
from jaxtribute.errors import JaxtributeError as OpError
from jaxtribute.errors import OutOfRangeError as OutOfRangeError

__all__ = [
    "AlreadyExistsError",
    "CancelledError",
    "DeadlineExceededError",
    "InvalidArgumentError",
    "NotFoundError",
    "OpError",
    "OutOfRangeError",
    "PermissionDeniedError",
    "UnavailableError",
    "UnimplementedError",
]
