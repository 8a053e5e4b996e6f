"""Predicts the time and the memory of a step on devices that are not there; `jaxtribute plan` is its command line."""

from jaxtribute._src.public import publish as _publish
from jaxtribute._src.tools.planning.cost import StepCost
from jaxtribute._src.tools.planning.inspection import cost_of
from jaxtribute._src.tools.planning.kinds import DEVICES, LINKS, Device, Link
from jaxtribute._src.tools.planning.prediction import Cluster, Prediction, predict

__all__ = [
    "DEVICES",
    "LINKS",
    "Cluster",
    "Device",
    "Link",
    "Prediction",
    "StepCost",
    "cost_of",
    "predict",
]

_publish(__name__)
