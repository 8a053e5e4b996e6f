"""`tf.tpu`: what programs for TPUs call before they make a strategy."""

from typing import Any

from jaxtribute._src.addons.compat.catalog.lookup import explain_absent
from jaxtribute.compat.tf.tpu import experimental as experimental


def __getattr__(name: str) -> Any:
    raise explain_absent(__name__, "tf.tpu", name)
