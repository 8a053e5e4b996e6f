"""What workers run in the tests of TensorFlow's checkpoints."""

from pathlib import Path

import jaxtribute.compat.tf as tf
from worker_programs import rank, strategy


def save_as_the_guide_does(folder: str) -> tuple[str | None, float]:
    """Saves twice, each worker to a folder of its own, which all but the first delete each time; then restores."""
    with strategy().scope():
        weight = tf.Variable(1.0)
    own = Path(folder, "ckpt") if rank() == 0 else Path(folder, f"workertemp_{rank()}", "ckpt")
    checkpoint = tf.train.Checkpoint(weight=weight)
    manager = tf.train.CheckpointManager(checkpoint, own, max_to_keep=1)
    for value in (2.0, 3.0):
        weight.assign(value)
        manager.save()
        if rank():
            tf.io.gfile.rmtree(own)
    weight.assign(0.0)
    latest = tf.train.latest_checkpoint(Path(folder, "ckpt"))
    checkpoint.restore(latest).assert_consumed()
    return latest, float(weight.numpy())
