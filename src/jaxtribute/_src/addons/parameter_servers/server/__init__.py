"""A parameter server, and what is asked of it."""
