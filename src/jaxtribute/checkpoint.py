"""Checkpoints on Orbax: the whole state of a training, saved in the background, restored under any strategy."""

from jaxtribute._src.core.checkpoint.checkpoint import Checkpoint, RestoreStatus
from jaxtribute._src.core.checkpoint.folder import latest_checkpoint
from jaxtribute._src.core.checkpoint.manager import CheckpointManager
from jaxtribute._src.public import publish as _publish

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "RestoreStatus",
    "latest_checkpoint",
]

_publish(__name__)
