"""Finds how a training script fits accelerators and is fast there; `jaxtribute plan --fit` is its command line."""
