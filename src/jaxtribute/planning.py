"""Predicts the time and the memory of a step on devices that are not there; `jaxtribute plan` is its command line."""

from jaxtribute._src.addons.planning.cost import StepCost
from jaxtribute._src.addons.planning.inspection import cost_of
from jaxtribute._src.addons.planning.kinds import DEVICES, LINKS, Device, Link
from jaxtribute._src.addons.planning.prediction import Cluster, Prediction, predict
from jaxtribute._src.public import publish as _publish

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
