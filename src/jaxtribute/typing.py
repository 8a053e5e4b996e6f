"""`jaxtribute.typing`: names for the types of arguments that Python's own types say little about."""

from jaxtribute._src.core.types import (
    Array,
    ArrayLike,
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

__all__ = [
    "Array",
    "ArrayLike",
    "DType",
    "Foreign",
    "Function",
    "HostArray",
    "Json",
    "Leaf",
    "Nest",
    "Number",
    "Numeric",
    "Shape",
]
