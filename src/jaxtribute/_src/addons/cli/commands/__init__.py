"""The commands, one file each: the file's name is the command's.

A command has `HELP`, one line; `add_arguments(parser)`, which tells its arguments; and `run(arguments)`, which returns
the exit status. A file is imported to show the help of all, so what a command needs to run it imports in `run`.
"""
