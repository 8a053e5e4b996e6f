"""Datasets of other libraries and of files, as sources of batches."""
