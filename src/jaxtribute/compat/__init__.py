"""For programs that come from TensorFlow: `compat.v1` is `tf.compat.v1.distribute`, `compat.tf` a little of `tf`."""
