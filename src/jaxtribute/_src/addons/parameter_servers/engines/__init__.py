"""Engines that start and watch a cluster's processes."""
