"""task=bench_model_drafters: which share of a policy's text do model drafters (copies, small models, heads) predict?

Responses are sampled from the policy by keyed noise. Then the policy and each drafter compute the logits of every
position, given the true text before the position. result.json has for each drafter, over all positions:

argmax          share of positions at which the drafter's likeliest token is the emitted one
coupled         share at which the token drawn with the verifier's noise is the emitted one (das/models/coupled.py)
one_minus_tv    mean of 1 - TV(policy, drafter): the most that rejection sampling could accept
tau             tokens per pass of coupled drafts by their length, as a mean over all first positions: {"1": ..., "2":
                ...}; tau_likeliest: for drafts of likeliest tokens
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from analysis.arms import aligned
from das.models.coupled import OF_HEADS, OF_MODELS
from das.models.quantized import GROUPS, to_4_bits, to_8_bits
from das.verify.noise import keyed_argmax
from experiments.arm.data import dataset, tokenized_rows
from experiments.arm.models import draft_model_directory, policy_directory, with_head
from experiments.arm.validate import check
from experiments.heads.eagle3 import Eagle3Head, shape_for
from experiments.heads.files import load_head
from experiments.heads.training import STATE, generated, texts_of
from experiments.run.environment import set_environment
from experiments.run.errors import UserError
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder
from experiments.settings.compose import Composed
from experiments.settings.config import RunConfig, run_config

COUPLED, LIKELIEST = KINDS = range(2)  # a draft of tokens drawn with the noise; of likeliest tokens
COLUMNS, TAUS = ("argmax", "coupled", "one_minus_tv"), ("tau_likeliest", "tau")  # of the printed table
Model = torch.nn.Module
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Text:
    """One response: prompt and response as token ids, and the seed of its noise."""

    prompt: list[int]
    response: list[int]
    seed: int


@dataclass(frozen=True)
class Drafts:
    """The drafts for one response, from every place at which the drafter can begin.

    first: position in the response of the first place. by_depth: logits [places, tokens] of drafted token 1, 2, ...;
    row t of entry j predicts the token at position first + t + j. A single entry is used for all depths. scale: of the
    drafter's coupled drafts (das/models/coupled.py).
    """

    first: int
    by_depth: Sequence[torch.Tensor]
    scale: float


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
        numbers = [values[column] for column in COLUMNS] + [values[tau][str(config.task.tokens)] for tau in TAUS]
        lines.append([name, *map("{:.4f}".format, numbers)])
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
            made = with_head(run_config(composed.changed({"arm": "eagle3_frozen"})), folder, note)
            drafters[name] = drafts_of_head(policy, load_head(Path(made.arm.speculative["model"])))
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
    if "eagle3" in drafters and not (checkpoint / STATE).is_file():
        raise UserError(f"task.trained={checkpoint} holds no head: name a checkpoint of an arm that trained one")


def trained_head(checkpoint: Path, policy: Model) -> Eagle3Head:
    """Load the head from the checkpoint of an arm that trained a head, such as eagle3_online."""
    config: Any = policy.config
    head = Eagle3Head(shape_for(config.to_dict()))
    head.load_state_dict(torch.load(checkpoint / STATE, weights_only=True)["head"])
    return head


def drafts_of_model(model: Model) -> Drafter:
    """Return a drafter that is a whole model. It reads the true text, so its logits hold for every depth of a draft."""
    return lambda text, tokens: Drafts(0, [logits_of(model, text)], OF_MODELS)


def drafts_of_head(policy: Model, head: Eagle3Head) -> Drafter:
    """Return a drafter that is an EAGLE-3 head. It reads the policy's hidden states. Its first draft begins at the
    second token of the response."""
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
    if GROUPS[0] does not divide the inputs."""
    parts = []
    for part in weight.split(GROUPS[0], dim=1):
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
    seeds, width = np.arange(len(requests)), max(map(len, requests))

    def drawn(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Leave the noise's token alone to choose from."""
        tokens = keyed_argmax(logits / temperature, seeds, np.full(len(seeds), ids.shape[1] - width))
        return torch.full_like(logits, -torch.inf).scatter(1, tokens[:, None], 0.0)

    responses = generated(policy, requests, max_tokens, logits_processor=[drawn])
    return [Text(*parts) for parts in zip(requests, responses, range(len(requests)), strict=True)]


class Counts:
    """Counts how many drafted tokens are right, over all places of all responses that were added.

    tokens: the length of the longest draft.
    """

    def __init__(self, tokens: int):
        self.tokens = tokens
        # Each list has one array for each response.
        self._right: list[Ints] = []  # [places, KINDS]: number of drafted tokens before the first wrong one
        self._room: list[Ints] = []  # [places]: tokens from the place to the response's end

    def add(self, drafts: Drafts, response: Sequence[int], seed: int) -> None:
        """Count the drafts of one response, whose logits are already divided by the temperature. seed: the request's
        seed, which keys the noise."""
        emitted, first, alike = np.array(response, np.int64), drafts.first, len(drafts.by_depth) == 1
        places = len(emitted) - first
        if places < 1:
            return
        depths = min(self.tokens, places)
        drawn = [_drawn(logits, drafts.scale, seed, first + at) for at, logits in enumerate(drafts.by_depth[:depths])]
        running = np.ones((places, len(KINDS)), bool)  # whether a draft has been right so far
        right = np.zeros((places, len(KINDS)), np.int64)
        for depth in range(depths):
            running[places - depth :] = False  # these drafts have reached the response's end
            running[: places - depth] &= (drawn[0][depth:] if alike else drawn[depth]) == emitted[first + depth :, None]
            right += running
        self._right.append(right)
        self._room.append(places - np.arange(places))

    def share(self, kind: int) -> float:
        """Return the share of places at which the first drafted token equals the emitted one. kind: one of KINDS."""
        return float((np.concatenate(self._right)[:, kind] > 0).mean())

    def tokens_per_pass(self, kind: int, tokens: int) -> float:
        """Mean number of tokens that a pass emits if it verifies a draft of `tokens` tokens, over all places. kind: one
        of KINDS."""
        right, room = np.concatenate(self._right)[:, kind], np.concatenate(self._room)
        return float(np.minimum(np.minimum(right, tokens) + 1, room).mean())


def _drawn(logits: torch.Tensor, scale: float, seed: int, first: int) -> Ints:
    """Return the tokens of drafts of both kinds, [places, KINDS]. first: position in the response of the first row."""
    places = first + np.arange(len(logits), dtype=np.int64)
    coupled = keyed_argmax(logits * scale, np.full(len(places), seed, np.int64), places)
    return torch.stack((coupled, logits.argmax(-1)), dim=1).numpy()


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
