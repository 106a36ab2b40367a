"""Check, make and load EAGLE-3 draft heads. The cache keeps them. A head may be trained beside the policy."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import experiments.heads
from das.general.files import write_text
from das.models import head_files
from experiments.arm.data import split_rows, tokenized_rows
from experiments.policies import cached_folder
from experiments.run.errors import UserError
from experiments.settings.checked import plain
from experiments.settings.compose import group_settings
from experiments.settings.config import RunConfig
from experiments.settings.groups import DATA, HeadConfig
from experiments.settings.tasks import RESUMED

if TYPE_CHECKING:
    from experiments.heads.training import OnlineHead

SIBLINGS = 4  # responses to each problem, for the first training of a head
REPORT = "warm_up.json"


def check_head(config: RunConfig) -> None:
    """Check the settings of an EAGLE-3 arm before its head is made. Raises UserError with a one-line message."""
    settings = config.head
    for key, depth in {"tokens": config.arm.speculative.get("num_speculative_tokens"), "depth": settings.depth}.items():
        if problem := head_files.depth_problem(depth):
            raise UserError(f"head.{key}: {problem}")
    given = config.arm.speculative.get("model")
    if given is None and config.task.name not in RESUMED:
        raise UserError(f"head.path=null: task={config.task.name} makes no head; give a head's folder")
    policy = config.policy.path
    if given is None and policy is not None and not Path(policy).is_dir():
        raise UserError(f"head.path=null: a head is made for policies in folders only, not for {policy}")
    folder = None if policy is None else Path(policy)
    if given is not None and (problem := head_files.head_problem(Path(given), folder)):
        raise UserError(problem)


def with_head(config: RunConfig, policy: str, note: Callable[[str], None] = lambda line: None) -> RunConfig:
    """Return the config with the folder of the arm's head. The head is made if the cache lacks it.

    The config of an arm without a head is returned unchanged. policy: its folder. note: called with lines while a head
    is made. Raises UserError if the head belongs to another policy.
    """
    if config.arm.row.model != "head":
        return config
    folder = config.arm.speculative.get("model") or str(_cached(config, Path(policy), note))
    if problem := head_files.head_problem(Path(folder), Path(policy)):
        raise UserError(problem)
    arm = config.arm.model_copy(update={"speculative": {**config.arm.speculative, "model": folder}})
    return config.model_copy(update={"arm": arm})


def online_head(config: RunConfig, model: Any) -> "OnlineHead | None":
    """Load the arm's head, if it is trained beside the policy; else return None.

    config: returned by `with_head`. model: the policy that is trained.

    Raises UserError if this head and this policy cannot be trained together.
    """
    if not config.arm.online:
        return None
    from experiments.heads.files import load_head
    from experiments.heads.training import HeadOptions, OnlineHead

    settings = config.head
    factor = settings.online_rate
    options = HeadOptions(settings.depth, settings.matrix_learning_rate * factor, settings.other_learning_rate * factor)
    try:
        head = load_head(Path(config.arm.speculative["model"]))
        return OnlineHead(head.to(model.device), options, model, settings.share, config.seed)
    except ValueError as error:
        raise UserError(str(error)) from error


def _cached(config: RunConfig, policy: Path, note: Callable[[str], None]) -> Path:
    from transformers import logging

    from experiments.heads.files import save_head
    from experiments.heads.training import HeadOptions, WarmUp, make_head

    settings = config.head
    warm_up = WarmUp(
        prompts=_prompts(config, settings, str(policy)),
        max_tokens=min(settings.max_tokens, config.trainer.max_completion_length),
        temperature=config.trainer.temperature,
        epochs=settings.epochs,
        options=HeadOptions(settings.depth, settings.matrix_learning_rate, settings.other_learning_rate),
        seed=config.seed,
    )

    def write(folder: Path) -> None:
        note(f"making a draft head ({settings.warm}, {len(warm_up.prompts)} responses of the policy)")
        logging.disable_progress_bar()
        try:
            head, report = make_head(policy, warm_up, note)
        except ValueError as error:
            raise UserError(str(error)) from error
        finally:
            logging.enable_progress_bar()
        save_head(head, folder, head_files.tokenizer_digest(policy))
        write_text(folder / REPORT, json.dumps(report))
        took, tokens = report["sampled_s"] + report["trained_s"], report["tokens_per_pass"]
        note(f"draft head made in {took:.0f} s: {tokens:.2f} tokens a pass on responses it did not see")

    return cached_folder(Path(config.cache) / "heads" / _key(policy, warm_up), write)


def _prompts(config: RunConfig, settings: HeadConfig, policy: str) -> list[list[int]]:
    """Return the token ids of prompts. A new head learns from the policy's responses to them. The run does not train on
    them."""
    data = config.data
    if settings.warm == "general":
        other = "puzzles" if data.name == "programs" else "programs"
        data = DATA.made(plain(group_settings("data", other)))
    data = data.model_copy(update={"problems": settings.responses // SIBLINGS})
    rows, _, _ = split_rows(data, "training", config.model_copy(update={"seed": config.seed + 1}), policy)
    prompts = [prompt["prompt_token_ids"] for _, prompt in tokenized_rows(config, policy, rows)]
    return [prompt for prompt in prompts for _ in range(SIBLINGS)]


def _key(policy: Path, warm_up: Any) -> str:
    """Name of a head's folder in the cache: a hash of the policy, of all settings of the head, and of the code."""
    import torch

    sha = hashlib.sha256(torch.__version__.encode())
    for file in sorted([*policy.glob("*.safetensors"), policy / head_files.CONFIG]):
        sha.update(hashlib.sha256(file.read_bytes()).digest())
    for module in sorted(Path(experiments.heads.__file__).parent.glob("*.py")):
        sha.update(module.read_bytes())
    sha.update(repr(warm_up).encode())
    return sha.hexdigest()[:16]
