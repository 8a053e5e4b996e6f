"""Predicts the time and the memory of a step on devices that are not there; `jaxtribute plan` is its command line."""

from jaxtribute.planning.cost import StepCost as StepCost
from jaxtribute.planning.inspection import cost_of as cost_of
from jaxtribute.planning.kinds import DEVICES as DEVICES
from jaxtribute.planning.kinds import LINKS as LINKS
from jaxtribute.planning.kinds import Device as Device
from jaxtribute.planning.kinds import Link as Link
from jaxtribute.planning.prediction import Cluster as Cluster
from jaxtribute.planning.prediction import Prediction as Prediction
from jaxtribute.planning.prediction import predict as predict

__all__ = ["DEVICES", "LINKS", "Cluster", "Device", "Link", "Prediction", "StepCost", "cost_of", "predict"]
