"""`tf.compat`."""

from jaxtribute.compat.tf.compat import v1 as v1
