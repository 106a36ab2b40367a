"""task=bench_model_drafters: which share of a policy's text do model drafters (copies, small models, heads) predict?

Responses are sampled from the policy by keyed noise. Then the policy and each drafter compute the logits of every
position, given the true text before the position. result.json has for each drafter, over all positions:

argmax          share of positions at which the drafter's likeliest token is the emitted one
coupled         share at which the token drawn with the verifier's noise is the emitted one (das/models/coupled.py)
one_minus_tv    mean of 1 - TV(policy, drafter): the most that rejection sampling could accept
tau             tokens per pass of coupled drafts by their length, as a mean over all first positions: {"1": ..., "2":
                ...}; tau_likeliest: for drafts of likeliest tokens

experiments.heads is imported inside functions, because it loads transformers' trainer.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from analysis.arms import aligned
from das.models.coupled import OF_HEADS, OF_MODELS
from das.models.quantized import GROUP, to_4_bits, to_8_bits
from das.verify.noise import keyed_argmax
from experiments.arm.data import dataset
from experiments.arm.heads import with_head
from experiments.arm.policies import draft_model_directory, policy_directory
from experiments.arm.rollout_steps import tokenized_rows
from experiments.arm.validate import check
from experiments.measure.draft_counts import COUPLED, LIKELIEST, Counts, Drafts
from experiments.run.environment import set_environment
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder
from experiments.settings.compose import Composed
from experiments.settings.config import RunConfig, run_config
from experiments.small_policy.sample import sample

if TYPE_CHECKING:
    from experiments.heads.eagle3 import Eagle3Head

COLUMNS, TAUS = ("argmax", "coupled", "one_minus_tv"), ("tau_likeliest", "tau")  # of the printed table
Model = torch.nn.Module


@dataclass(frozen=True)
class Text:
    """One response: prompt and response as token ids, and the seed of its noise."""

    prompt: list[int]
    response: list[int]
    seed: int


Drafter = Callable[[Text, int], Drafts]  # (response, most tokens of a draft) -> the drafts at all its positions


def run(config: RunConfig, composed: Composed, folder: str) -> None:
    """Sample responses at trainer.temperature, and measure the drafters. Prints a table and writes result.json."""
    check(config, in_steps=False)
    if config.task.trained is not None:
        check_trained(Path(config.task.trained), config.task.drafters)
    set_environment(config.engine.threads)
    progress, temperature = Progress(0), float(config.trainer.temperature)
    run_folder = RunFolder(Path(folder), config.resolved)
    folder_of_policy = policy_directory(config, progress.note)
    problems = config.with_problems(config.task.problems)
    prompts = [
        prompt["prompt_token_ids"]
        for _, prompt in tokenized_rows(config, folder_of_policy, dataset(problems, folder_of_policy))
    ]
    policy, drafters = drafters_of(config.task, folder_of_policy, composed, progress.note)
    texts = sampled(policy, prompts, config.task.samples, temperature, config.task.max_tokens)
    found = measured(policy, drafters, texts, temperature, config.task.tokens)
    positions = sum(len(text.response) for text in texts)
    lines = [[f"T={temperature:g}, {positions} positions", *COLUMNS, *TAUS]]
    for name, values in found.items():
        taus = (values[tau][str(config.task.tokens)] for tau in TAUS)
        lines.append([name, *(f"{value:.4f}" for value in (*(values[column] for column in COLUMNS), *taus))])
    progress.note(f"\n{aligned(lines)}")
    progress.note(f"result: {run_folder.write_result({'positions': positions, 'drafters': found})}")


def drafters_of(
    task: Any, folder: str, composed: Composed, note: Callable[[str], None]
) -> tuple[Model, dict[str, Drafter]]:
    """Return the policy that writes the text, and its drafters by name.

    folder: the folder of the config's policy. If task.trained names a checkpoint, the policy is loaded from there. Then
    copies and the head of the config's policy, which lack this training, are further drafters: "NAME, older".
    """
    policy = old = load(folder)
    if task.trained is not None:
        policy = load(task.trained)
    drafters: dict[str, Drafter] = {}
    for name in task.drafters:
        if name in COPIES:
            drafters[name] = drafts_of_model(COPIES[name](policy))
            if policy is not old:
                drafters[f"{name}, older"] = drafts_of_model(COPIES[name](old))
        elif name == "draft_model":
            drafting = run_config(composed.changed({"arm": name}))
            policy_directory(drafting, note)  # makes the draft model, too
            drafters[name] = drafts_of_model(load(draft_model_directory(drafting)))
        else:
            from experiments.heads import files as head_files

            made = with_head(run_config(composed.changed({"arm": "eagle3_frozen"})), folder, note)
            drafters[name] = drafts_of_head(policy, head_files.load_head(Path(made.arm.speculative["model"])))
            if policy is not old:
                drafters[f"{name}, older"] = drafters[name]
                drafters[name] = drafts_of_head(policy, trained_head(Path(task.trained), policy))
    return policy, drafters


def check_trained(checkpoint: Path, drafters: Sequence[str]) -> None:
    """Raise UserError if the checkpoint lacks a policy, or lacks the head that is to be compared."""
    if not (checkpoint / "config.json").is_file():
        raise UserError(
            f"task.trained={checkpoint} holds no policy: name a folder like RUN/arms/ARM/checkpoints/step_00008"
        )
    if "eagle3" in drafters:
        from experiments.heads import training as head_training

        if not (checkpoint / head_training.STATE).is_file():
            raise UserError(f"task.trained={checkpoint} holds no head: name a checkpoint of an arm that trained one")


def trained_head(checkpoint: Path, policy: Model) -> "Eagle3Head":
    """Load the head from the checkpoint of an arm that trained a head, such as eagle3_online."""
    from experiments.heads import training as head_training
    from experiments.heads.eagle3 import Eagle3Head, shape_for

    config: Any = policy.config
    head = Eagle3Head(shape_for(config.to_dict()))
    head.load_state_dict(torch.load(checkpoint / head_training.STATE, weights_only=True)["head"])
    return head


def drafts_of_model(model: Model) -> Drafter:
    """Return a drafter that is a whole model. It reads the true text, so its logits hold for every depth of a draft."""
    return lambda text, tokens: Drafts(0, [logits_of(model, text)], OF_MODELS)


def drafts_of_head(policy: Model, head: "Eagle3Head") -> Drafter:
    """Return a drafter that is an EAGLE-3 head. It reads the policy's hidden states. Its first draft begins at the
    second token of the response."""
    from experiments.heads.warm_up import texts_of

    embedding: torch.Tensor = policy.get_input_embeddings().weight  # type: ignore[operator]

    def drafts(text: Text, tokens: int) -> Drafts:
        (read,) = texts_of(policy, head.shape.aux_layers, [text.prompt], [text.response])
        unrolled = head.unrolled(read.tokens, read.hidden, embedding, tokens)
        return Drafts(1, [logits[read.prompt - 1 : len(logits) - 1].contiguous() for logits in unrolled], OF_HEADS)

    return drafts


def load(folder: str) -> Model:
    """Load a policy or draft model in float32. Raises UserError if the folder holds no model."""
    if not (Path(folder) / "config.json").exists() and Path(folder).is_absolute():
        raise UserError(f"{folder} holds no model: it has no config.json")
    model: Model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()
    return model


def rounded_copy(policy: Model, rounded: Callable[[torch.Tensor], torch.Tensor]) -> Model:
    """Return a copy of the policy with rounded weights in its linear layers, except in the output head."""
    copied = copy.deepcopy(policy)
    for name, layer in copied.named_modules():
        if isinstance(layer, torch.nn.Linear) and "lm_head" not in name:
            layer.weight.data = rounded(layer.weight.data)
    return copied


def rounded_to_8_bits(weight: torch.Tensor) -> torch.Tensor:
    """Return `weight` [outputs, inputs] with the rounding of w8a8, in its former type."""
    rounded, scales = to_8_bits(weight)
    return (rounded * scales[:, None]).to(weight.dtype)


def rounded_to_4_bits(weight: torch.Tensor) -> torch.Tensor:
    """Return `weight` [outputs, inputs] with the rounding of w4, in its former type. The last group of a row is shorter
    if GROUP does not divide the inputs."""
    parts = []
    for part in weight.split(GROUP, dim=1):
        values, scales, zeros = to_4_bits(part, part.shape[1])
        parts.append((values - zeros) * scales)
    return torch.cat(parts, dim=1).to(weight.dtype)


COPIES: dict[str, Callable[[Model], Model]] = {
    "w8": lambda policy: rounded_copy(policy, rounded_to_8_bits),
    "w4": lambda policy: rounded_copy(policy, rounded_to_4_bits),
}


def sampled(policy: Any, prompts: Sequence[list[int]], samples: int, temperature: float, max_tokens: int) -> list[Text]:
    """Return `samples` responses to each prompt, drawn by keyed noise as in an engine. Seeds count from 0."""
    requests = [prompt for prompt in prompts for _ in range(samples)]
    end = policy.generation_config.eos_token_id

    def draw(logits: torch.Tensor, seeds: Sequence[int], place: int) -> torch.Tensor:
        positions = np.full(len(seeds), place, np.int64)
        return keyed_argmax(logits / temperature, np.array(seeds, np.int64), positions)

    responses = sample(policy, requests, max_tokens, end if isinstance(end, list) else [end], draw)
    return [Text(*parts) for parts in zip(requests, responses, range(len(requests)), strict=True)]


@torch.inference_mode()
def measured(
    policy: Model, drafters: Mapping[str, Drafter], texts: Sequence[Text], temperature: float, tokens: int
) -> dict[str, dict[str, Any]]:
    """Return for each drafter the numbers that this module's docstring explains. tokens: length of a draft."""
    counts = {name: Counts(tokens) for name in drafters}
    shared, places = dict.fromkeys(drafters, 0.0), dict.fromkeys(drafters, 0)
    for text in texts:
        probs = (logits_of(policy, text) / temperature).double().softmax(-1)
        for name, drafter in drafters.items():
            drafts = drafter(text, tokens)
            drafts = replace(drafts, by_depth=[logits / temperature for logits in drafts.by_depth])
            counts[name].add(drafts, text.response, text.seed)
            if drafts.by_depth:
                of_drafter = drafts.by_depth[0].double().softmax(-1)
                shared[name] += float(torch.minimum(probs[drafts.first :], of_drafter).sum())
                places[name] += len(of_drafter)
    return {name: summary(counts[name], shared[name] / places[name]) for name in drafters}


def summary(counts: Counts, one_minus_tv: float) -> dict[str, Any]:
    """Return a drafter's entry of result.json."""
    lengths = range(1, counts.tokens + 1)
    return {
        "argmax": counts.share(LIKELIEST),
        "coupled": counts.share(COUPLED),
        "one_minus_tv": one_minus_tv,
        "tau": {str(tokens): counts.tokens_per_pass(COUPLED, tokens) for tokens in lengths},
        "tau_likeliest": {str(tokens): counts.tokens_per_pass(LIKELIEST, tokens) for tokens in lengths},
    }


def logits_of(model: Model, text: Text) -> torch.Tensor:
    """Return the logits for each token of the response, given the true text before it: [tokens of the response,
    vocab]."""
    ids = torch.tensor([text.prompt + text.response[:-1]])
    logits: torch.Tensor = model(input_ids=ids, use_cache=False, logits_to_keep=len(text.response)).logits[0]
    return logits.contiguous()
