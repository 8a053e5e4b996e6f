"""Preemption: all workers agree on a step, save once, and end so that they are started again."""

from jaxtribute.checkpoint.preemption.handler import PreemptionCheckpointHandler as PreemptionCheckpointHandler
from jaxtribute.checkpoint.preemption.termination import TerminationConfig as TerminationConfig
from jaxtribute.checkpoint.preemption.watcher import PreemptionWatcher as PreemptionWatcher
