"""One module per task of run.py; each has `run(config, overrides, folder)`."""
