"""A compiled program's text, read. XLA's text is no interface: a line that is not understood counts as nothing."""
