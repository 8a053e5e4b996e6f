"""Distributed values: arrays with a placement over a strategy's replicas."""
