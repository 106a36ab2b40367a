"""The tasks of run.py (registry.py lists them), and all code that only they need."""
