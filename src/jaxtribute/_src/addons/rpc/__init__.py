"""Functions of one process that others call, over ZeroMQ."""
