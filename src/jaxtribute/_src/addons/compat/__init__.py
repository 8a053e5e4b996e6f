"""Parts of `jaxtribute.compat`, and the migration of TensorFlow programs."""
