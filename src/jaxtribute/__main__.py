"""`python -m jaxtribute`: the command line."""

from jaxtribute._src.tools.cli.main import entry_point

entry_point()
