"""A user's process in which an engine of das is built between two stock ones. These keep vLLM's classes and tokens, and
the process its warnings, threads and environment. The plug-in is all that the engine of das needs; without it, and
where settings ask for das by half, one line says what is missing.
"""

import json
import os
import re
import subprocess
import sys

import pytest
from scripts import ROOT

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
PROGRAM = """
import functools, gc, inspect, json, logging, os, sys, types, warnings
import torch
import vllm.triton_utils
from vllm import LLM, SamplingParams
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

class Extension:
    def colleague(self):
        return type(self).__mro__[1].__name__

sys.modules["extension_of_others"] = types.ModuleType("extension_of_others")
sys.modules["extension_of_others"].Extension = Extension
extended = {"worker_extension_cls": "extension_of_others.Extension"}

def build(**arguments):
    return LLM(sys.argv[1], dtype="float32", enforce_eager=True, gpu_memory_utilization=0.1, max_model_len=128,
               max_num_seqs=4, seed=3, **arguments)

def close(llm):
    llm.llm_engine.engine_core.shutdown()
    cleanup_dist_env_and_memory()
    gc.collect()

def refusal(**arguments):
    try:
        build(**arguments)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"

def tokens(llm):
    params = [SamplingParams(temperature=1.0, max_tokens=40, ignore_eos=True, seed=seed) for seed in (1, None, 2, None)]
    outputs = llm.generate([{"prompt_token_ids": [5 + i, 6, 7]} for i in range(4)], params, use_tqdm=False)
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

def of_stock(**arguments):
    stock = build(**arguments)
    found = {"tokens": tokens(stock), "attributes": attributes(), "has_triton": vllm.triton_utils.HAS_TRITON,
             "modules": list(sys.modules), "own": [torch.get_num_threads(), sorted(os.environ)]}
    close(stock)
    return found

before, filters = of_stock(), list(warnings.filters)
import das, das.engine.plugin
from das.engine.versions import IN_LOGS
assert warnings.filters == filters, "engines that did not ask for das keep their warnings"
assert not any(logging.getLogger(name).filters for name in IN_LOGS)
environment = dict(os.environ)
arguments = das.engine_arguments(budget={"name": "fixed", "tokens": 4})
assert dict(os.environ) == environment, "engine_arguments() changed the environment"
only_settings = das.engine_arguments("none") | {"worker_cls": "auto"}
refused = [refusal(**arguments)]
das.engine.plugin.register()  # as vLLM does where das was installed with pip
refused += [refusal(**each) for each in (only_settings, arguments | {"worker_cls": "auto", "additional_config": {}})]
llm = build(**arguments, **extended)
params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
for _ in range(2):
    llm.generate({"prompt_token_ids": [5, 6, 7]}, params, use_tqdm=False)
report = llm.collective_rpc("das_end_rollout", args=(1,))[0]
tokens(llm)
assert llm.collective_rpc("colleague")
close(llm)
del llm
das.install()
print("RESULT" + json.dumps([before, of_stock(**extended), refused, report["passes"], report["history_tokens"]]))
"""


def test_stock_engines_are_as_they_were_and_the_plugin_is_all_that_das_needs(tiny_policy: str) -> None:
    ours = ("VLLM_", "OMP_")  # what das and tests set here; the engine is in the program's process all the same
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_PLUGINS": ""}
    environment["OMP_NUM_THREADS"] = "2"
    command = [sys.executable, "-c", PROGRAM, tiny_policy]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("RESULT")]
    before, now, refused, passes, history_tokens = json.loads(line.removeprefix("RESULT"))
    assert now["tokens"] == before["tokens"]
    in_both = set(before["modules"])  # das imports more of vLLM
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
    unprepared, by_settings, by_drafter = refused
    assert unprepared == "NotInstalled: an engine of das needs das.install() (or das's plug-in) before it is built"
    assert by_settings.startswith("NotInstalled: additional_config asks for das, but worker_cls is")
    assert 'das drafts in its own worker only: add worker_cls="das.engine.worker.DasWorker"' in by_drafter
    assert history_tokens == 80
    assert passes < 70, "the second response, equal to the first, was not drafted"
