"""`TPUStrategy`, and which devices of a TPU make up which replica."""
