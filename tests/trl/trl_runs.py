"""Short trainings with every trainer of TRL that rolls out with vLLM, all on one engine."""

import importlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import das
from das.engine.settings import EngineSettings
from das.trl import generation as of_trl

STEPS = 2
ON_CPU: dict[str, Any] = {  # of a trainer whose engine is in its process
    "use_vllm": True,
    "vllm_mode": "colocate",
    "vllm_gpu_memory_utilization": 0.1,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}
COMMON: dict[str, Any] = {
    **ON_CPU,
    "max_steps": STEPS,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "max_completion_length": 40,
    "temperature": 1.0,
    "learning_rate": 0.002,
}
GROUPS: dict[str, Any] = {"num_generations": 4}
# By trainer: module, arguments of its config.
TRAINERS: dict[str, tuple[str, dict[str, Any]]] = {
    "GRPO": ("trl", GROUPS),
    "RLOO": ("trl", GROUPS),
    "Distillation": ("trl", {}),
    "GMPO": ("trl.experimental.gmpo", GROUPS),
}
RUNS = ("GRPO", "RLOO", "Distillation", "GRPO with LoRA")


def reward(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    return [float(len(set(ids)) - ids[0] % 7) for ids in completion_ids]


def rows(images: bool = False) -> Any:
    """The dataset. images: the questions are about two images, in turn."""
    from datasets import Dataset

    asked = [[{"role": "user", "content": f"what is {n} + {n + 3}?"}] for n in range(8)]
    columns: dict[str, list[Any]] = {"prompt": asked}
    if images:
        from PIL import Image

        shown = [Image.new("RGB", (56, 56), colour) for colour in ("red", "blue")]
        columns = {"prompt": [asked[0]] * len(asked), "image": [shown[n % 2] for n in range(len(asked))]}
    return Dataset.from_dict(columns)


def trainer(run: str, policy: str, teacher: str, folder: str) -> Any:
    """The trainer of TRL that `run` names, as a script would build it."""
    name, *more = run.split(" with ")
    module, arguments = TRAINERS[name]
    found = importlib.import_module(module)
    config = getattr(found, f"{name}Config")(output_dir=folder, **{**COMMON, **arguments})
    further: dict[str, Any] = {"teacher_model": teacher} if name == "Distillation" else {"reward_funcs": reward}
    if "LoRA" in more:
        import torch
        from peft import LoraConfig

        torch.manual_seed(0)  # TRL 1.13 draws adapters before it sets its own seed
        dropout = 0.0 if "experts" in more else 0.2  # peft has none for experts
        further["peft_config"] = LoraConfig(r=4, lora_alpha=16, lora_dropout=dropout, target_modules="all-linear")
    return getattr(found, f"{name}Trainer")(model=policy, args=config, train_dataset=rows("images" in more), **further)


QUESTION = "what is 3 + 4?"


def ask(generation: Any) -> list[list[int]]:
    """What a user's callback may ask for between rollouts: vLLM's generate and chat, or those of a server's client, and
    TRL's own generate. Returns the tokens."""
    prompt = generation.processing_class(QUESTION)["input_ids"]
    if generation.mode != "server":
        found = ask_llm(generation.llm)
        assert any(each.text for each in found)  # rollouts have none
        tokens = [list(each.token_ids) for each in found]
    elif generation.accelerator.is_main_process:
        client = generation.vllm_client
        tokens = client.generate([QUESTION] * 3, n=2, max_tokens=8)["completion_ids"]
        tokens += client.chat([[{"role": "user", "content": QUESTION}]], n=2, max_tokens=8)["completion_ids"]
    else:
        tokens = []
    return tokens + generation.generate([prompt], None, 1)[1]


def ask_llm(llm: Any) -> list[Any]:
    """Returns two responses of vLLM's LLM to each of four prompts."""
    from vllm import SamplingParams

    params = SamplingParams(n=2, max_tokens=8, temperature=1.0)
    outputs = llm.generate([QUESTION] * 3, params, use_tqdm=False)
    outputs += llm.chat([{"role": "user", "content": QUESTION}], params, use_tqdm=False)
    return [each for output in outputs for each in output.outputs]


def learned(worker: Any) -> tuple[int, int]:
    """How much a worker's drafter remembers, and its tick."""
    drafter = worker.das_runner.flights.proposer.draft_round.drafter
    return drafter.history_tokens, drafter.history_tick


def train(built: Any, asks: bool = False) -> dict[str, Any]:
    """Train, and return the responses, what was logged, and the final weights. asks: a callback asks the engine after
    each step."""
    from transformers import TrainerCallback

    from experiments.digests import weights_digest

    responses: list[list[list[int]]] = []
    asked: list[Any] = []

    class Notes(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            last = built.vllm_generation.last
            responses.append([] if last is None else last.responses)
            if asks:
                llm = built.vllm_generation.llm
                before = llm.collective_rpc(learned)
                asked.append((ask(built.vllm_generation), before, llm.collective_rpc(learned)))

    built.add_callback(Notes())
    built.train()
    logs = [log for log in built.state.log_history if "grad_norm" in log]
    return {
        "responses": responses,
        "asked": asked,
        "losses": [(log["loss"], log["grad_norm"]) for log in logs],
        "weights": weights_digest(built.model),
        "drafted": sum(log.get("das/drafted", 0) for log in logs),
        "accepted": sum(log.get("das/accepted", 0) for log in logs),
    }


@contextmanager
def one_engine() -> Iterator[Callable[..., None]]:
    """Inside, all trainers of a method share one engine. The yielded function is das.speculate(), for small engines."""
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    built: dict[str, Any] = {}
    trainers = itertools.count()
    build_engine = of_trl.build_engine

    def close() -> None:
        for llm in built.values():
            llm.llm_engine.engine_core.shutdown()
        built.clear()
        cleanup_dist_env_and_memory()

    def build(settings: EngineSettings, **overrides: Any) -> Any:
        if settings.method not in built:
            close()
            built[settings.method] = build_engine(settings, **overrides)
        llm = built[settings.method]
        if settings.row.proposes:  # a new drafter, as a new engine would have
            llm.collective_rpc("das_use_proposer", args=(f"of trainer {next(trainers)}", None))
        return llm

    def speculate(method: str) -> None:
        das.speculate(method, budget={"name": "fixed", "tokens": 8}, engine={"max_num_seqs": 8, "max_model_len": 128})

    with patch.object(of_trl, "build_engine", build):
        try:
            yield speculate
        finally:
            das.speculate("off")
            close()
