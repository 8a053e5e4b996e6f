"""Maps TensorFlow's names to this library's: the one table behind the guide, `jaxtribute migrate` and errors."""
