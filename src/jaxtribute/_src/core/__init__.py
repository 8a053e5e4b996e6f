"""The core: what `tf.distribute` is, on JAX. It imports no add-on."""
