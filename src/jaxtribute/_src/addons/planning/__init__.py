"""Predicts the time and the memory of a step on devices that are not there; `jaxtribute plan` is its command line."""
