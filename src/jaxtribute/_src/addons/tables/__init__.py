"""Tables of embeddings whose rows lie over the replicas."""
