"""Constants shared by the history drafter's two implementations, native and reference. They are not options.

The values were chosen by replaying parts of recorded traces (docs/log.md#the-drafter-second-pass-2026-11-21).

A fallback lookup searches the texts of other problems, or continues a draft when no occurrence agrees with it any more.
It visits fewer occurrences than the lookup for a draft's first token.
"""

ORDERS = (1, 2, 4)  # n-gram sizes that are indexed (index.h); adding 8 gains 0.7 % tokens per pass for 9 bytes a token
VISITS = (24, 32, 32)  # occurrences visited per order; a lookup in other problems also counts those that it skips
FALLBACK_VISITS = 8  # the same in fallback lookups; after a drafted token, also the most candidates in total
MAX_MATCH = 32  # tokens; matches are compared up to this length
PROMPT_CONTEXT = 32  # last prompt tokens stored before a response; before a later turn they reach to a tool's result
SHARED_TEXTS = 8  # newest texts of a problem that other problems see; within a tick, the first to finish
PLACES = 16  # if drafts use the noise: most occurrences in the problem for the first token; 64 gain 0.2 %
AGREEING = 2  # the same: if the nearest occurrence disagrees and at most so many agree, look up again
CROSS_PROBLEM_CANDIDATES = 4  # occurrences in other problems considered per lookup
