"""Keras 3 on its JAX backend under strategies.

Nothing here needs to be called: the scope of a strategy finds Keras by itself. `activation` does that, `variables`
stores what Keras keeps, `steps` is what a replica runs, `trainer` connects the two with `fit`, `evaluate` and
`predict`.
"""
