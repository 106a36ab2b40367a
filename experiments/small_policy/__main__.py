"""python -m experiments.small_policy KIND ...: train policies anew, and write them as they ship, in bfloat16."""

import sys

import torch

from experiments.small_policy import small
from experiments.small_policy.programs import policy as programs

kinds, known = sys.argv[1:], [*small.KINDS, programs.KIND]
if not kinds or set(kinds) - set(known):
    sys.exit(f"error: {' '.join(kinds) or 'no kind named'}: choose from {', '.join(known)}")
for kind in kinds:
    model, tokenizer = programs.trained(print) if kind == programs.KIND else small.trained(small.KINDS[kind], print)
    small.save(model.to(torch.bfloat16), tokenizer, small.SHIPPED / kind)
