"""Engines that did not ask for das: their classes, their tokens and their worker extension stay as vLLM has them."""

import re

import pytest
from scripts import in_new_interpreter

pytestmark = pytest.mark.slow

# What the plug-in replaces (das/engine/install.py, patches/front_end.py and patches/model_runner.py name the reasons);
# nothing else may differ.
DORMANT = [
    "vllm.config.vllm.VllmConfig.__post_init__",
    "vllm.config.vllm.VllmConfig._validate_v2_model_runner",
    "vllm.config.vllm.VllmConfig.use_v2_model_runner",
    "vllm.engine.arg_utils.EngineArgs.create_engine_config",
    "vllm.v1.engine.input_processor.InputProcessor.__init__",
]
SCRIPT = """
import functools, inspect, json, os, sys, types
mode, policy = sys.argv[1:]
import torch
import vllm.triton_utils
from vllm import LLM, SamplingParams

class Extension:
    def colleague(self):
        return type(self).__mro__[1].__name__

sys.modules["extension_of_others"] = types.ModuleType("extension_of_others")
sys.modules["extension_of_others"].Extension = Extension

def build(**arguments):
    return LLM(policy, dtype="float32", enforce_eager=True, gpu_memory_utilization=0.1, max_model_len=128,
               max_num_seqs=4, seed=3, worker_extension_cls="extension_of_others.Extension", **arguments)

def tokens(llm):
    params = [SamplingParams(temperature=1.0, max_tokens=40, ignore_eos=True, seed=seed) for seed in (1, None, 2, None)]
    outputs = llm.generate([{"prompt_token_ids": [5 + i, 6, 7]} for i in range(4)], params, use_tqdm=False)
    assert llm.collective_rpc("colleague")
    return [list(output.outputs[0].token_ids) for output in outputs]

def where(value):
    value = getattr(value, "fget", value)
    value = getattr(value, "__func__", value)
    if isinstance(value, types.FunctionType):
        return f"{value.__module__}.{value.__qualname__} {value.__code__.co_filename}:{value.__code__.co_firstlineno}"
    return type(value).__name__ + (f" {value!r}" if isinstance(value, (bool, int, str, type(None))) else "")

def attributes():
    found = {}
    for module_name, module in sorted(sys.modules.items()):
        if module_name.split(".")[0] != "vllm" or not isinstance(module, types.ModuleType):
            continue
        for name, value in list(vars(module).items()):
            if isinstance(value, (types.FunctionType, functools.partial)):
                found[f"{module_name}.{name}"] = module_name, where(value)
            if inspect.isclass(value) and value.__module__ == module_name:
                for attribute, held in vars(value).items():
                    if callable(held) or isinstance(held, (property, classmethod, staticmethod)):
                        found[f"{module_name}.{name}.{attribute}"] = module_name, where(held)
    return found

if mode == "beside-das":
    import das
    das.install()
    llm = build(**das.engine_arguments())
    keyed = tokens(llm)
    import gc
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
    llm.llm_engine.engine_core.shutdown()
    del llm
    cleanup_dist_env_and_memory()
    gc.collect()
stock = build()
own = [torch.get_num_threads(), sorted(os.environ)]
print("RESULT" + json.dumps({"tokens": tokens(stock), "attributes": attributes(),
                           "has_triton": vllm.triton_utils.HAS_TRITON, "modules": list(sys.modules), "own": own}))
"""


def test_a_stock_engine_beside_das_is_as_it_was(tiny_policy: str) -> None:
    before, now = (
        in_new_interpreter(SCRIPT, mode, tiny_policy, OMP_NUM_THREADS="2") for mode in ("without-das", "beside-das")
    )
    assert now["tokens"] == before["tokens"]
    in_both = set(before["modules"]) & set(now["modules"])  # das imports more of vLLM
    was, is_now = (
        {name: place for name, (module, place) in result["attributes"].items() if module in in_both}
        for result in (before, now)
    )
    assert len(was) > 5000
    changed = [name for name in sorted(was | is_now) if was.get(name) != is_now.get(name)]
    # Its kernels, which no other engine on a CPU launches.
    changed = [name for name in changed if not re.fullmatch(r"vllm\.v1\.worker\.gpu\..*\._\w+_kernel", name)]
    assert changed == DORMANT
    assert now["has_triton"] is before["has_triton"]
    assert now["own"] == before["own"], "a user's threads and environment stay theirs"
