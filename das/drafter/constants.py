"""Constants shared by the history drafter's two implementations, native and reference. They are not options.

The values were chosen by replay of parts of recorded traces (docs/notes/2026-11-21-drafter-second-pass.md).

A fallback lookup searches other problems' texts, or continues a draft with which no occurrence agrees any more. It
visits fewer occurrences than the lookup of a draft's first token.
"""

ORDERS = (1, 2, 4)  # n-gram sizes that are indexed (index.h); adding 8 gains 0.7 % tokens per pass for 9 bytes a token
VISITS = (24, 32, 32)  # occurrences visited for each order; in other problems, the own problem's texts count as visits
FALLBACK_VISITS = 8  # the same in a fallback lookup; after a drafted token, also the most candidates in all
MAX_MATCH = 32  # tokens; matches are compared up to this length
PROMPT_CONTEXT = 8  # last prompt tokens stored before a response, so that its first tokens have a context
SHARED_TEXTS = 8  # texts of a problem that other problems see: the newest; within a tick, the first to finish
CROSS_PROBLEM_CANDIDATES = 4  # occurrences in other problems considered per lookup
