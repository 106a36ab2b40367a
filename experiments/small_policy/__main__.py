"""python -m experiments.small_policy KIND ...: train policies anew, and write them as they ship, in bfloat16."""

import sys

import torch

from experiments.small_policy import small
from experiments.small_policy.programs import policy as programs

for kind in sys.argv[1:] or sys.exit(f"error: which? {', '.join([*small.KINDS, programs.KIND])}"):
    model, tokenizer = programs.trained(print) if kind == programs.KIND else small.trained(small.KINDS[kind], print)
    small.save(model.to(torch.bfloat16), tokenizer, small.SHIPPED / kind)
