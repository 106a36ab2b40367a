"""Imports what takes engines and trainers 12 s of a processor to import. The process from which they are forked imports
this module, and computes nothing: a fork would lose the threads of torch."""

import atexit
import gc
import os
from contextlib import suppress
from importlib import import_module

os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")  # vLLM reads it at the import (das/engine/install.py)
for _name in ("transformers", "trl", "vllm.v1.engine.llm_engine", "das.engine.worker", "das.trl.speculate"):
    with suppress(Exception):  # a process that needs it says so, and the others still run
        import_module(_name)
gc.freeze()  # no fork searches the modules for garbage, nor copies their pages for that
atexit.register(os._exit, 0)  # the warm process ends at once: to take its modules apart would need seconds
