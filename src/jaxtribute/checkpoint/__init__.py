"""Checkpoints on Orbax: the whole state of a training, saved in the background, restored under any strategy."""

from jaxtribute.checkpoint.checkpoint import Checkpoint as Checkpoint
from jaxtribute.checkpoint.checkpoint import RestoreStatus as RestoreStatus
from jaxtribute.checkpoint.latest import latest_checkpoint as latest_checkpoint
from jaxtribute.checkpoint.manager import CheckpointManager as CheckpointManager
