"""`python -m jaxtribute.cli`: the command line, for where the script `jaxtribute` is not on the path."""

from jaxtribute._src.addons.cli.main import entry_point as entry_point

if __name__ == "__main__":
    entry_point()
