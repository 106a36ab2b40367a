"""What the history drafter's two implementations, native and reference, have in common: constants and option checks."""

SCOPES = ("problem+request", "problem", "global+request", "siblings", "own")

# Chosen by replay of parts of recorded traces (docs/log.md, 2026-11-21).
ORDERS = (1, 2, 4)  # n-gram sizes indexed (index.h); order 8 besides gains 0.7 % tokens per pass for 9 bytes a token
VISITS = (24, 32, 32)  # occurrences looked at per order; in other problems' texts the problem's own count too
FEW = 8  # the same in other problems and, as occurrences in all too, where none agrees with the draft any more
MAX_MATCH = 32  # tokens; matches are compared up to here
CONTEXT = 8  # tokens of the prompt kept before a response, so that its first tokens have a context
COPIES = 8  # texts of a problem that other problems see: the newest, and of a clock the first to finish
OTHERS = 4  # occurrences in other problems looked at per lookup


def check_options(window: int, scope: str, min_prob: float, max_candidates: int, cross_problem_tokens: int) -> None:
    """ValueError, in one line, for an option outside its range."""
    if window < 0:
        raise ValueError(f"window must be >= 0, got {window}")
    if scope not in SCOPES:
        raise ValueError(f"scope must be one of {', '.join(SCOPES)}; got {scope!r}")
    if not 0.0 <= min_prob <= 1.0:
        raise ValueError(f"min_prob must be in 0..1, got {min_prob}")
    if not 1 <= max_candidates <= 256:
        raise ValueError(f"max_candidates must be in 1..256, got {max_candidates}")
    if cross_problem_tokens < 0:
        raise ValueError(f"cross_problem_tokens must be >= 0, got {cross_problem_tokens}")
