"""Checkpoints on Orbax: the whole state of a training, saved in the background, restored under any strategy."""
