"""`tf.strings`: texts on the host, by TensorFlow's names."""

from typing import Any

from jaxtribute._src.addons.compat.catalog.lookup import explain_absent
from jaxtribute._src.addons.compat.tf.strings import join as join
from jaxtribute._src.addons.compat.tf.strings import length as length
from jaxtribute._src.addons.compat.tf.strings import lower as lower
from jaxtribute._src.addons.compat.tf.strings import regex_full_match as regex_full_match
from jaxtribute._src.addons.compat.tf.strings import regex_replace as regex_replace
from jaxtribute._src.addons.compat.tf.strings import strip as strip
from jaxtribute._src.addons.compat.tf.strings import to_number as to_number
from jaxtribute._src.addons.compat.tf.strings import upper as upper


def __getattr__(name: str) -> Any:
    raise explain_absent(__name__, "tf.strings", name)
