"""Reading a TensorFlow program, without running it, for what has to change; the engine of `jaxtribute migrate`."""
