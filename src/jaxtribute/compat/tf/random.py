"""A little of `tf.random`. The numbers are not TensorFlow's: no other library has its generators."""

from jaxtribute._src.addons.compat.tf.random import *
