"""What each name of TensorFlow is in this library: the one table behind the guide, `jaxtribute migrate` and errors."""
