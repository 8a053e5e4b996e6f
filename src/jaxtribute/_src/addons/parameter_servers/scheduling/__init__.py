"""The coordinator, its queue and the workers."""
