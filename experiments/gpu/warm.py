"""Imports what takes parts 10 to 20 seconds to import. The process from which they are forked imports this module, and
computes nothing: a fork would lose the threads of torch, and could not use a GPU."""

import traceback
from importlib import import_module

for _name in ("transformers", "trl", "vllm.v1.engine.llm_engine", "das.engine.worker", "experiments.gpu.child"):
    try:
        import_module(_name)
    except Exception:  # each part that needs it says so, and the others still run
        traceback.print_exc()
