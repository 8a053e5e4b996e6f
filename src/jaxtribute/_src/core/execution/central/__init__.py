"""Compiled programs whose variables live on one device and whose replicas run on others."""
