"""Published traces (recordings.json) that need care: runs to leave out, and problems with several prompts."""

import re

# File name -> the runs that read_rollouts leaves out: they are copies of rows, or responses of steered policies.
LEFT_OUT_RUNS = {
    "arctic_prob0019_tokenids.jsonl.gz": re.compile("cleaned_0019_temp0|data"),
    "steer_r1d_qwen14b_pos0to3.jsonl.gz": re.compile(r".*/alpha_(neg)?1p0"),
}

# Trace -> number of prompts of every problem. These differ by a few words, and follow one another in the trace.
PROMPT_VARIANTS = {"steer_r1d_qwen14b_pos0to3": 4}
