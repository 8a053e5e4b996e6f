"""`tf.tpu.experimental`: JAX initializes TPUs by itself."""

from __future__ import annotations

from typing import Any

from jaxtribute._src.compat.catalog.lookup import explain_absent


def initialize_tpu_system(cluster_resolver: object = None) -> None:
    """Does nothing: JAX initializes TPUs when it starts. Source: `tf.tpu.experimental.initialize_tpu_system`."""
    del cluster_resolver


def shutdown_tpu_system(cluster_resolver: object = None) -> None:
    """Does nothing: the end of the process does it. Source: `tf.tpu.experimental.shutdown_tpu_system`."""
    del cluster_resolver


def __getattr__(name: str) -> Any:
    raise explain_absent(__name__, "tf.tpu.experimental", name)
