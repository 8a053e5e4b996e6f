"""Tells operations of Keras's loss objects from others, by the file that they come from."""

from __future__ import annotations

from pathlib import Path

from jaxtribute.extending import JaxprEqn, Programs


def is_of_loss_object(eqn: JaxprEqn) -> bool:
    """True if a loss object of Keras has made an operation, where it reduces what it has computed."""
    files = (Path(frame.file_name).as_posix() for frame in Programs.user_frames(eqn))
    return any(file.endswith("/keras/src/losses/loss.py") for file in files)
