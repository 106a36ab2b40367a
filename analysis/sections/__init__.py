"""Sections of the report of task=reproduce, one module for each figure. They read only files that runs wrote."""
