"""Made-up responses that share phrases, in place of a recording."""

import numpy as np

Problems = list[tuple[str, list[np.ndarray]]]  # (problem, its responses in the order they were sampled)


def made_up_problems(problems: int, responses: int, length: int, seed: int) -> Problems:
    """Make a stand-in for a trace. Responses of a problem have `length` tokens and share phrases, in random order."""
    rng = np.random.default_rng(seed)
    made: Problems = []
    for problem in range(problems):
        phrases = [rng.zipf(1.3, rng.integers(4, 16)) % 5000 for _ in range(60)]
        texts = []
        for _ in range(responses):
            text: list[int] = []
            at = 0
            while len(text) < length:
                at = (at + 1) % 60 if rng.random() < 0.7 else int(rng.integers(60))
                phrase = phrases[at].copy()
                noisy = rng.random(len(phrase)) < 0.1
                phrase[noisy] = rng.integers(0, 5000, noisy.sum())
                text += phrase.tolist()
            texts.append(np.asarray(text[:length], np.int32))
        made.append((f"generated-{problem}", texts))
    return made
