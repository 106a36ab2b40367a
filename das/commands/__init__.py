"""The command line: `python -m das doctor` and `python -m das run`."""
