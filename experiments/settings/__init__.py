"""The settings of a run: their types and ranges, what excludes what, and how a command line becomes a config."""
