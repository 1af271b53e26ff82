"""The command line: `main.py` finds the command, one module per command does the work."""
