"""The errors of jaxtribute, as one tree.

Each error also inherits the builtin that Python code would expect at that place, so `except ValueError` keeps working.

    JaxtributeError
    ├── DeviceError          (ValueError)    a device string that is malformed, or names no device
    ├── ContextError         (RuntimeError)  a call in the wrong context: replica, cross-replica, scope
    ├── StrategyMixError     (RuntimeError)  values of two strategies met
    ├── ConfigError          (RuntimeError)  a setting that is invalid, or came after the backend started
    ├── TraceError           (RuntimeError)  a function that cannot be compiled as written
    ├── ArgumentError        (ValueError)    an argument that cannot be used
    │   ├── ArgumentTypeError (TypeError)    an argument of a wrong type
    │   │   └── UnsupportedError (NotImplementedError)  one that TensorFlow does not support here either
    │   └── ShapeError       (ValueError)    shapes that do not fit, between replicas or for an assignment
    ├── VariableError        (ValueError)    a variable created, read or written against its policy
    │   └── AggregationError (NotImplementedError)  writes of several replicas that its aggregation cannot join
    ├── InputError           (ValueError)    a dataset that cannot be distributed as asked
    ├── OutOfRangeError      (IndexError)    the end of a dataset, from `get_next()`
    ├── ClusterSpecError     (ValueError)    a cluster that is described wrongly: spec, TF_CONFIG, environment
    ├── ClusterError         (RuntimeError)  a cluster that cannot be joined, or lost a worker
    ├── DivergenceError      (RuntimeError)  copies that should be the same have drifted apart
    ├── DeadlineError        (TimeoutError)  a wait that outlived its deadline; says for whom it waited
    ├── CancelledError       (RuntimeError)  a scheduled function that did not run, as another one failed
    ├── MissingLibraryError  (ImportError)   a library of an extra that is not installed
    ├── ProcessFailedError   (RuntimeError)  a process of a job on this machine that raised or died
    └── CheckpointError      (RuntimeError)  a checkpoint that could not be written or read
        ├── CheckpointDamagedError (RuntimeError)  a checkpoint whose files are not as they were written
        ├── CheckpointUnreadableError (RuntimeError)  a checkpoint that cannot be read now, and may be whole
        └── CheckpointMismatchError (ValueError)  a checkpoint that does not fit what it is restored into
"""


class JaxtributeError(Exception):
    """The root of every error that this library raises on purpose."""


class DeviceError(JaxtributeError, ValueError):
    """A device string is malformed, or no device has that name. The message lists the devices that exist."""


class ContextError(JaxtributeError, RuntimeError):
    """Something was called in the wrong context: replica, cross-replica, or another strategy's scope."""


class StrategyMixError(JaxtributeError, RuntimeError):
    """Variables or values of one strategy were given to another."""


class ConfigError(JaxtributeError, RuntimeError):
    """A setting is invalid, or it was changed after the JAX backend that it shapes had started."""


class TraceError(JaxtributeError, RuntimeError):
    """A function cannot be compiled as it is written; run it eagerly, or write what the message says."""


class ArgumentError(JaxtributeError, ValueError):
    """An argument cannot be used. Source: `tf.errors.InvalidArgumentError`."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has a type that cannot be used."""


class ShapeError(ArgumentError):
    """Shapes do not fit: between replicas, between a value and an axis, or between a variable and a value."""


class VariableError(JaxtributeError, ValueError):
    """A variable was created, read or written against its synchronization or aggregation."""


class AggregationError(VariableError, NotImplementedError):
    """A variable's aggregation does not say what the writes of several replicas come to."""


class InputError(JaxtributeError, ValueError):
    """A dataset cannot be distributed as asked."""


class UnsupportedError(ArgumentTypeError, NotImplementedError):
    """A call that TensorFlow has under this name, and does not support either."""


class OutOfRangeError(JaxtributeError, IndexError):
    """A distributed iterator has no more elements. Source: `tf.errors.OutOfRangeError`."""


class ClusterSpecError(JaxtributeError, ValueError):
    """A cluster is described wrongly: a malformed spec, `TF_CONFIG` or scheduler's environment."""


class ClusterError(JaxtributeError, RuntimeError):
    """A cluster cannot be joined, or it lost a worker."""


class CancelledError(JaxtributeError, RuntimeError):
    """A scheduled function did not run, as another one failed before. Source: `tf.errors.CancelledError`."""


class DeadlineError(JaxtributeError, TimeoutError):
    """A wait outlived its deadline. The message says for whom it waited."""


class MissingLibraryError(JaxtributeError, ImportError):
    """A library that comes with an extra of this package is not installed."""


class ProcessFailedError(JaxtributeError, RuntimeError):
    """A process of a job on this machine raised or died.

    Attributes:
        rank: The rank of that process; `None` if it is not known.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class CheckpointError(JaxtributeError, RuntimeError):
    """A checkpoint could not be written or read."""


class CheckpointDamagedError(CheckpointError):
    """Files of a checkpoint are missing, or hold other bytes than were written. The message lists them."""


class CheckpointUnreadableError(CheckpointError):
    """The system cannot read a checkpoint now (EIO, too many open files, ...), which says nothing about its files."""


class CheckpointMismatchError(CheckpointError, ValueError):
    """A checkpoint does not fit what it is to be restored into. The message lists all that differs."""


class DivergenceError(JaxtributeError, RuntimeError):
    """Copies of a value that should be the same on all replicas have drifted apart."""
