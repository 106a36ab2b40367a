"""Drafters that are models. They need torch and vLLM; the drafters of das/drafter need neither."""
