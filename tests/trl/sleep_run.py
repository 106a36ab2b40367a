"""rank_run.py in one process, first awake and then with vllm_enable_sleep_mode. Usage: sleep_run.py POLICY FOLDER

vLLM has no sleep mode on a CPU. The engine here stands in for one that has
it: it forgets weights and KV cache when it sleeps, refuses to work when it should be asleep, and records TRL's calls
into FOLDER/calls.json.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from rank_run import QUESTIONS, train
from vllm.platforms.cpu import CpuPlatform
from vllm.sampling_params import SamplingParams

from das.engine.build import build_engine
from das.engine.rollouts.rollout import RolloutRequest
from das.trl import speculate
from experiments.training import stock
from experiments.training.generation import HarnessGeneration

ALL = {"weights", "kv_cache"}
calls: list[str] = []


class Sleeper:
    """Gives an engine without sleep mode one that costs no memory."""

    def __init__(self, llm: Any):
        self.llm = llm
        self.awake = set(ALL)
        self.runner = llm.llm_engine.model_executor.driver_worker.model_runner
        self._wrap(self.runner.model, "load_weights", {"weights"})
        self._wrap(llm, "generate", ALL)
        llm.sleep, llm.wake_up = self.sleep, self.wake_up

    def _wrap(self, owner: Any, name: str, needed: set[str]) -> None:
        original = getattr(owner, name)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            assert self.awake >= needed, f"{name} while only {self.awake} are awake"
            if name not in calls[-1:]:
                calls.append(name)
            return original(*args, **kwargs)

        setattr(owner, name, recorded)

    def sleep(self, level: int) -> None:
        calls.append(f"sleep {level}")
        self.awake = set()
        for tensor in (*self.runner.model.parameters(), *self.runner.kv_caches):
            tensor.data.fill_(float("nan"))
        self.llm.reset_prefix_cache()

    def wake_up(self, tags: list[str]) -> None:
        calls.append(f"wake {' '.join(tags)}")
        self.awake |= set(tags)
        if "kv_cache" in tags:
            for tensor in self.runner.kv_caches:
                tensor.data.zero_()


def build(settings: Any, enable_sleep_mode: bool = False, **overrides: Any) -> Any:
    llm = build_engine(settings, **overrides)
    if enable_sleep_mode:
        Sleeper(llm)
    return llm


def evaluate(trainer: Any) -> list[list[int]]:
    """A rollout that TRL does not start."""
    backend = trainer.vllm_generation
    prompts = [{"prompt_token_ids": trainer.processing_class(question)["input_ids"]} for question in QUESTIONS]
    seeds = list(range(len(prompts)))
    params = SamplingParams(max_tokens=8)
    request = RolloutRequest(prompts, params, QUESTIONS, seeds, step=9, next_history_tick=9, evaluation=True)
    with torch.no_grad():
        responses: list[list[int]] = backend.evaluate(request).responses
    assert backend._llm_weights_sleeping == backend.enable_sleep_mode
    return responses


if __name__ == "__main__":
    policy, folder = sys.argv[1], Path(sys.argv[2])
    CpuPlatform.is_sleep_mode_available = lambda self: True
    stock.build_engine = build
    speculate.SpeculativeGeneration = HarnessGeneration  # which evaluates
    results = {}
    for name in ("awake", "asleep"):
        results[name] = train("das", policy, folder, {"vllm_enable_sleep_mode": name != "awake"}, after=evaluate)
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "calls.json").write_text(json.dumps(calls))
