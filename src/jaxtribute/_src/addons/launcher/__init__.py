"""Processes of a job on this machine: what `jaxtribute launch` and `jd.testing` are made of."""
