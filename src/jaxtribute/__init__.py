"""The programming model of `tf.distribute` on JAX."""

from importlib.metadata import version as _version

__version__ = _version("jaxtribute")
