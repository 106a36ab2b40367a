"""Measurements of parts: a drafter's index, drafters that are models, passes of an engine, equality of tokens."""
