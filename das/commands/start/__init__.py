"""The folder that `python -m das run` puts first on the module path of the processes that it starts."""
