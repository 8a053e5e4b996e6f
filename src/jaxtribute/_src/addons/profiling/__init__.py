"""Shows the parts of a training step's time; `jaxtribute trace` is its command line."""
