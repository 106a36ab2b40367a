"""The tasks of run.py (settings/tasks.py lists them), and all code that only they need."""
