"""`python -m jaxtribute.cli`, for where the script is not on the path."""

from jaxtribute.cli.main import entry_point

entry_point()
