"""Programs compiled for TPU slices that are not there; `jaxtribute plan --topology` is its command line."""
