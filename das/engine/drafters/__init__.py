"""Drafters that are models. They need torch and vLLM, which das/drafter does without."""
