"""Reward for short texts, for quick tests of the whole training.

The responses to a problem differ in length, so they differ in this reward, and even a random policy gets a gradient.
"""


def brevity_reward(completions: list[str]) -> list[float]:
    """Return a reward for each completion: 1 if it is empty, 1/2 if it has 100 characters, close to 0 if it is very
    long."""
    return [100.0 / (100.0 + len(completion)) for completion in completions]
