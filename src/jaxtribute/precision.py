"""`jd.precision`: mixed precision and loss scaling."""

from jaxtribute._src.addons.training.precision import (
    DynamicLossScale,
    LossScale,
    Policy,
    StaticLossScale,
    cast_floating,
)
from jaxtribute._src.public import publish as _publish

__all__ = [
    "DynamicLossScale",
    "LossScale",
    "Policy",
    "StaticLossScale",
    "cast_floating",
]

_publish(__name__)
