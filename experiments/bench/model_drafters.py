"""task=bench_model_drafters: how much of a policy's text do drafters that are models draft right?

Responses are sampled from the policy by keyed noise. Then the policy and each drafter compute the logits of every
position, given the true text before it. Of each drafter, over all positions:

argmax          share at which its likeliest token is the one that was emitted
coupled         share at which the token is that it draws with the verifier's noise (das/engine/coupled.py)
one_minus_tv    mean of 1 - TV(policy, drafter): the most that rejection sampling could accept
tau_argmax, tau_coupled   tokens per pass of drafts of `task.tokens` tokens that begin anywhere
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig
from transformers import AutoModelForCausalLM

from analysis.arms import aligned
from das.engine.drafters.quantized import rounded_to_4_bits, rounded_to_8_bits
from das.engine.noise import keyed_argmax
from experiments.harness.arm_configs import arm_config
from experiments.harness.config import run_config
from experiments.harness.data import dataset
from experiments.harness.policies import draft_model_directory, policy_directory
from experiments.harness.rollout_steps import tokenized_rows
from experiments.harness.validate import check
from experiments.run.checks import at_least_one
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder

COLUMNS = ("argmax", "coupled", "one_minus_tv", "tau_argmax", "tau_coupled")
Model = torch.nn.Module


@dataclass(frozen=True)
class Text:
    """One response: prompt and response as token ids, and the seed of its noise."""

    prompt: list[int]
    response: list[int]
    seed: int


def run(composed: DictConfig, overrides: list[str], folder: str) -> None:
    """Sample, measure, print a table for each temperature, write result.json."""
    at_least_one(composed.task, "problems", "samples", "tokens", "max_tokens")
    config = run_config(composed)
    check(config, in_steps=False)
    temperatures = [float(value) for value in config.task["temperatures"]]
    if not temperatures or min(temperatures) <= 0:
        raise UserError(f"task.temperatures={temperatures}: give one or more numbers above 0")
    unknown = set(config.task["drafters"]) - set(COPIES) - {"draft_model"}
    if unknown:
        raise UserError(f"task.drafters: unknown {sorted(unknown)}; choose from {', '.join([*COPIES, 'draft_model'])}")
    torch.set_num_threads(config.engine.threads)
    progress = Progress(len(temperatures))
    run_folder = RunFolder(Path(folder), config.resolved)
    folder_of_policy = policy_directory(config, progress.note)
    problems = config.with_problems(config.task["problems"])
    prompts = [
        prompt["prompt_token_ids"]
        for _, prompt in tokenized_rows(config, folder_of_policy, dataset(problems, folder_of_policy))
    ]
    policy = load(folder_of_policy)
    drafters = {name: COPIES[name](policy) for name in config.task["drafters"] if name in COPIES}
    if config.task["stale"] is not None:
        old = load(config.task["stale"])
        drafters |= {f"{name} of task.stale": COPIES[name](old) for name in config.task["drafters"] if name in COPIES}
    if "draft_model" in config.task["drafters"]:
        drafting = arm_config("draft_model", overrides)
        policy_directory(drafting, progress.note)  # makes the draft model, too
        drafters["draft_model"] = load(draft_model_directory(drafting))
    result: dict[str, Any] = {}
    for temperature in temperatures:
        texts = sampled(policy, prompts, config.task["samples"], temperature, config.task["max_tokens"])
        found = measured(policy, drafters, texts, temperature, config.task["tokens"])
        positions = sum(len(text.response) for text in texts)
        result[f"{temperature:g}"] = {"positions": positions, "drafters": found}
        lines = [[f"T={temperature:g}, {positions} positions", *COLUMNS]]
        lines += [[name, *(f"{values[column]:.4f}" for column in COLUMNS)] for name, values in found.items()]
        progress.note(f"\n{aligned(lines)}")
    first = result[f"{temperatures[0]:g}"]
    progress.note(f"result: {run_folder.write_result({**first, 'by_temperature': result})}")


def load(folder: str) -> Model:
    """A policy or draft model in float32. Raises UserError for a folder that holds none."""
    if not (Path(folder) / "config.json").exists() and Path(folder).is_absolute():
        raise UserError(f"{folder} holds no model: it has no config.json")
    model: Model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model


def rounded_copy(policy: Model, rounded: Callable[[torch.Tensor], torch.Tensor]) -> Model:
    """The policy with rounded weights in its linear layers, but for the head."""
    copied = copy.deepcopy(policy)
    for name, layer in copied.named_modules():
        if isinstance(layer, torch.nn.Linear) and "lm_head" not in name:
            layer.weight.data = rounded(layer.weight.data)
    return copied


COPIES: dict[str, Callable[[Model], Model]] = {
    "w8": lambda policy: rounded_copy(policy, rounded_to_8_bits),
    "w4": lambda policy: rounded_copy(policy, rounded_to_4_bits),
}


@torch.inference_mode()
def sampled(
    policy: Model, prompts: Sequence[list[int]], samples: int, temperature: float, max_tokens: int
) -> list[Text]:
    """`samples` responses to each prompt, drawn by keyed noise as an engine draws them. Seeds count from 0."""
    requests = [prompt for prompt in prompts for _ in range(samples)]
    width, num = max(map(len, requests)), len(requests)
    ids, mask = torch.zeros(num, width, dtype=torch.long), torch.zeros(num, width, dtype=torch.long)
    for row, prompt in enumerate(requests):  # padded on the left
        ids[row, width - len(prompt) :], mask[row, width - len(prompt) :] = torch.tensor(prompt), 1
    seeds, responses, live = np.arange(num, dtype=np.int64), [[] for _ in requests], np.ones(num, bool)  # type: ignore[var-annotated]
    positions, cache, inputs = (mask.cumsum(-1) - 1).clamp(min=0), None, ids
    end = policy.generation_config.eos_token_id  # type: ignore[union-attr]
    ends = set(end if isinstance(end, list) else [end])
    for place in range(max_tokens):
        output = policy(
            input_ids=inputs,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = output.past_key_values
        tokens = keyed_argmax(output.logits[:, -1] / temperature, seeds, np.full(num, place, np.int64))
        for row in live.nonzero()[0].tolist():
            responses[row].append(int(tokens[row]))
            live[row] = int(tokens[row]) not in ends
        if not live.any():
            break
        inputs, mask = tokens[:, None], torch.cat([mask, mask.new_ones(num, 1)], dim=1)
        positions = positions[:, -1:] + 1
    return [Text(*parts) for parts in zip(requests, responses, seeds.tolist(), strict=True)]


@torch.inference_mode()
def measured(
    policy: Model, drafters: Mapping[str, Model], texts: Sequence[Text], temperature: float, tokens: int
) -> dict[str, dict[str, float]]:
    """For each drafter the numbers that the module's docstring names. tokens: of a draft."""
    sums = {name: np.zeros(len(COLUMNS)) for name in drafters}
    positions = 0
    for text in texts:
        target = logits_of(policy, text) / temperature
        probs = target.double().softmax(-1)
        seeds, places = np.full(len(target), text.seed, np.int64), np.arange(len(target), dtype=np.int64)
        emitted = torch.tensor(text.response)
        positions += len(target)
        for name, drafter in drafters.items():
            drafted = logits_of(drafter, text) / temperature
            likeliest = (drafted.argmax(-1) == emitted).numpy()
            coupled = (keyed_argmax(drafted, seeds, places) == emitted).numpy()
            shared = float(torch.minimum(probs, drafted.double().softmax(-1)).sum())
            per_pass = [tokens_per_pass(hits, tokens) * len(hits) for hits in (likeliest, coupled)]
            sums[name] += [likeliest.sum(), coupled.sum(), shared, *per_pass]
    return {name: dict(zip(COLUMNS, (total / positions).tolist(), strict=True)) for name, total in sums.items()}


def logits_of(model: Model, text: Text) -> torch.Tensor:
    """Logits [response, vocab] of the response's tokens, each given the true text before it."""
    ids = torch.tensor([text.prompt + text.response[:-1]])
    logits: torch.Tensor = model(input_ids=ids, use_cache=False, logits_to_keep=len(text.response)).logits[0]
    return logits.contiguous()


def tokens_per_pass(hits: np.ndarray, tokens: int) -> float:
    """Mean tokens of a pass that verifies `tokens` drafted ones, over drafts that begin at each position.

    hits: bool [positions], whether the drafter is right there. A draft ends with the response.
    """
    total = 0
    for start in range(len(hits)):
        window = hits[start : start + tokens]
        accepted = len(window) if window.all() else int(window.argmin())
        total += min(accepted + 1, len(hits) - start)
    return total / len(hits)
