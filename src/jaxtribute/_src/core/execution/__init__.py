"""Running replica functions: captured and compiled, or in lockstep."""
