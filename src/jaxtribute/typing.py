"""`jaxtribute.typing`: names for the types of arguments that Python's own types say little about."""

from jaxtribute._src.core.types import (
    Array,
    ArrayLike,
    Device,
    DType,
    Foreign,
    Function,
    HostArray,
    Json,
    Leaf,
    Nest,
    Number,
    Numeric,
    Shape,
)
from jaxtribute._src.core.values.distributed import Distributed
from jaxtribute._src.core.values.enums import AggregationLike, ReduceOpLike, SynchronizationLike

__all__ = [
    "AggregationLike",
    "Array",
    "ArrayLike",
    "DType",
    "Device",
    "Distributed",
    "Foreign",
    "Function",
    "HostArray",
    "Json",
    "Leaf",
    "Nest",
    "Number",
    "Numeric",
    "ReduceOpLike",
    "Shape",
    "SynchronizationLike",
]
