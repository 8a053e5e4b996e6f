"""What each process of an example that takes several does."""

import json
import os
from typing import Any

import numpy as np

import jaxtribute.compat.tf as tf


def run_as_worker(prelude: str, source: str) -> tuple[str, int, int]:
    """The first worker runs the example, which makes `strategy`; the others make the strategy alone.

    Returns:
        What the strategy says of this process, and how many replicas it has.
    """
    config = json.loads(os.environ["TF_CONFIG"])
    names: dict[str, Any] = {"tf": tf, "np": np, "os": os, "json": json}
    if config["task"]["index"] == 0:
        exec(compile(prelude + source, "<example>", "exec"), names)
    else:
        names["strategy"] = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    strategy = names["strategy"]
    return strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
