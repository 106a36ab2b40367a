"""Particulars of some published traces (shared/data/traces) that tasks read."""

import re

# File name -> the runs that read_rollouts leaves out: copies of rows, and responses of policies that were steered.
LEFT_OUT_RUNS = {
    "arctic_prob0019_tokenids.jsonl.gz": re.compile("cleaned_0019_temp0|data"),
    "steer_r1d_qwen14b_pos0to3.jsonl.gz": re.compile(r".*/alpha_(neg)?1p0"),
}

# Trace -> number of prompts that it has of every problem, listed one after the other. They differ by a few words.
PROMPT_VARIANTS = {"steer_r1d_qwen14b_pos0to3": 4}
