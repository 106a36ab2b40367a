"""The voting and mixing weights a new drafter starts with (`Weights` of mix.h); it goes on learning from them."""

SIZES = {"match": (2, 16), "source": (19,), "rank": (11,), "none": (16, 8), "mix": (16, 15)}

PRIOR: dict[str, list] = {
    "match": [[2.718281828 ** (0.35 * b) for b in range(16)], [2.718281828 ** (0.3 * b - 1.5) for b in range(16)]],
    "source": [1.0] * 19,
    "rank": [2.718281828 ** (-0.1 * r) for r in range(11)],
    "none": [[2.718281828 ** (0.1 * b)] * 8 for b in range(16)],
    "mix": [[1.0] + [0.0] * 14 for _ in range(16)],
}
