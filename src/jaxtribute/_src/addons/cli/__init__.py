"""The command line: `jaxtribute COMMAND ...`."""
