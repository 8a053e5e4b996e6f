"""Elastic training: islands that come and go, with their sums outside of the programs."""
