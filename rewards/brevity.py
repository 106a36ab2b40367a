"""Reward for short texts, for smoke runs.

The responses of a group differ in length and so in this reward, which gives even a random policy a gradient.
"""


def brevity_reward(completions: list[str]) -> list[float]:
    """1 for an empty completion, 1/2 at 100 characters, close to 0 for long completions."""
    return [100.0 / (100.0 + len(completion)) for completion in completions]
