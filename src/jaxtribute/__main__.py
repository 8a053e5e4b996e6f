"""`python -m jaxtribute`: the command line."""

from jaxtribute._src.addons.cli.main import entry_point

entry_point()
