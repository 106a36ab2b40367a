"""Reward for short texts: it differs within any group, so that even a random policy has a gradient (smoke runs)."""


def brevity_reward(completions: list[str]) -> list[float]:
    """1 for an empty completion, 1/2 at 100 characters, towards 0 for long ones."""
    return [100.0 / (100.0 + len(completion)) for completion in completions]
