"""Storage of a variable over the replicas, in terms of arrays."""
