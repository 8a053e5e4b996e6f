"""Parts of `tf.data`."""
