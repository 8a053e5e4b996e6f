"""The programming model of `tf.distribute` on JAX."""

from importlib.metadata import version as _version

from jaxtribute import config as config

__version__ = _version("jaxtribute")

# Before user code can start a backend; this starts none.
config.apply_environment()
