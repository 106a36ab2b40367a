"""Find, make or load the models of an arm: its policy, its draft model, its EAGLE-3 head, which may be trained beside
the policy. Refuse those that cannot be used. The cache keeps what is made. No code that comes with a policy is run."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import experiments.heads
from das.general.errors import reason_of
from das.general.files import write_text
from das.models import head_files
from das.trl.support import QUANTIZED
from experiments.arm.data import is_recorded, recorded_texts, split_rows, tokenized_rows, vocabulary_of
from experiments.policies import SHIPPED, cached_folder
from experiments.policies.shapes import random_policy, shape_of
from experiments.run.errors import UserError
from experiments.settings.checked import plain
from experiments.settings.compose import group_settings
from experiments.settings.config import RunConfig
from experiments.settings.groups import DATA, HeadConfig
from experiments.settings.tasks import RESUMED

if TYPE_CHECKING:
    from experiments.heads.training import OnlineHead


def small_kind(config: RunConfig) -> str:
    """Return the kind of small policy that fits a run's data: programs or puzzles."""
    return "programs" if config.data.judged_by == "code" else "puzzles"


def policy_directory(config: RunConfig, progress: Callable[[str], None]) -> str:
    """Return the policy: the configured directory or hub id, or the folder of a small policy, SmolLM2, random weights.

    progress: called with lines while SmolLM2 is converted or fine-tuned, which the cache keeps. Raises UserError if
    SmolLM2 is at hand nowhere.
    """
    if config.policy.path is not None:
        return config.policy.path
    if config.policy.name == "smollm2":
        return str(_smollm2(config, progress))
    if config.policy.name == "random":
        return str(_random(config))
    return str(SHIPPED / small_kind(config))


def draft_model_directory(config: RunConfig) -> str:
    """Return the draft model of an arm that drafts with one: the configured directory or hub id, or that of the small
    policy for puzzles. Raises UserError for other policies."""
    configured = config.arm.speculative["model"]
    if configured is not None:
        return str(configured)
    if config.policy.path is not None or config.policy.name != "small" or small_kind(config) != "puzzles":
        raise UserError(
            "arm.speculative.model=null: only policy=small on puzzles has a draft model; name the folder of one that "
            "has the policy's tokenizer"
        )
    return str(SHIPPED / "draft")


def check_mtp(config: RunConfig) -> None:
    """Refuse an arm whose policy lacks an MTP layer. Raises UserError."""
    if config.arm.row.model == "mtp layer" and config.policy.path is None:
        name = config.policy.name
        raise UserError(f"arm {config.arm.name}: policy={name} has no MTP layer; name one that has by policy.path")


def _random(config: RunConfig) -> Path:
    """Return the folder of random weights, with the small policy's tokenizer. They have as many tokens as the recorded
    text of the run needs."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(SHIPPED / small_kind(config), trust_remote_code=False)
    tokens, shape = len(tokenizer), shape_of(str(config.policy.shape))
    if is_recorded(config):
        tokens = max(tokens, vocabulary_of(recorded_texts(config, tokenizer.eos_token_id)))
    vocabulary = shape.vocabulary or -(-tokens // 128) * 128  # vLLM pads vocabularies to a multiple of 64
    dtype = shape.dtype if config.engine.dtype == "auto" else config.engine.dtype
    folder = random_policy(str(config.policy.shape), vocabulary, dtype, Path(config.cache) / "policies")
    if not (folder / "tokenizer_config.json").exists():
        tokenizer.save_pretrained(folder)
    return folder


def _smollm2(config: RunConfig, progress: Callable[[str], None]) -> Path:
    """Return the folder of SmolLM2, as it comes or after its cold start."""
    from experiments.policies.smollm2 import build_cold_start, find_smollm2

    cache = Path(config.cache) / "policies"
    policy = find_smollm2(cache, progress)
    return policy if config.policy.cold_start is None else build_cold_start(policy, cache, progress)


def check_policy(path: str, max_model_len: int) -> None:
    """Refuse a policy that transformers cannot load as one complete model. Raises UserError.

    path: a folder; a hub id is not checked. max_model_len: tokens of prompt and response that the engine must hold.
    """
    folder = Path(path)
    if not folder.is_dir():
        if folder.is_absolute() or path.startswith(".") or folder.is_symlink() or folder.exists():
            raise UserError(f"policy.path={path} does not exist, or is no folder")
        return
    try:
        problem = _incomplete(folder, max_model_len)
    except Exception as error:  # safetensors, JSON, strict configs and tokenizers each raise errors of their own kinds
        problem = f"transformers cannot load it: {type(error).__name__}: {reason_of(error)}"
    if problem:
        raise UserError(f"policy.path={path}: {' '.join(problem.split())[:300]}")


def _incomplete(folder: Path, max_model_len: int) -> str:
    """Return in words what transformers would load without an error, though it is no complete model. Empty if all is
    well. Raises transformers' errors."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, logging

    if "quantization_config" in PreTrainedConfig.get_config_dict(folder)[0]:
        return QUANTIZED
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)  # suppresses a report of many lines
    logging.disable_progress_bar()
    options: dict[str, Any] = {"use_safetensors": True, "device_map": "meta"}
    try:  # names and shapes only; mismatched sizes are reported
        options |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, report = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False, **options)
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()
    tokens, config = len(AutoTokenizer.from_pretrained(folder, trust_remote_code=False)), model.config.get_text_config()
    for what in ("mismatched", "missing", "unexpected"):
        names = sorted(str(key[0] if isinstance(key, tuple) else key) for key in report[f"{what}_keys"])
        if names:
            return f"weights and config.json belong to different models: {len(names)} {what}, such as {names[0]}"
    if tokens > config.vocab_size:
        return f"the tokenizer knows {tokens} tokens, the policy {config.vocab_size}: they belong to different models"
    context = getattr(config, "max_position_embeddings", max_model_len)
    too_long = (
        f"it holds at most {context} tokens (max_position_embeddings): lower engine.max_model_len={max_model_len}"
    )
    return too_long if max_model_len > context else ""


def check_history(path: Path, policy: str) -> None:
    """Refuse a drafter's history with tokens that the policy does not know. Raises UserError.

    path: a history.npz that the drafter can read. policy: its config.json says how many tokens it knows.
    """
    config = Path(policy) / "config.json"
    if not config.exists():
        return
    vocabulary = json.loads(config.read_text())["vocab_size"]
    with np.load(path, allow_pickle=False) as arrays:
        largest = int(arrays["tokens"].max(initial=0))
        if "others" in arrays:  # tokens of remembered distributions (das.drafter.distributions)
            largest = max(largest, int((arrays["others"] >> 5).max(initial=0)))
    if largest >= vocabulary:
        raise UserError(
            f"drafter.warm={path} holds token {largest}, the policy knows {vocabulary}: it belongs to another policy"
        )


# ---- EAGLE-3 heads ----

SIBLINGS = 4  # responses to each problem, for the first training of a head
REPORT = "warm_up.json"


def check_head(config: RunConfig) -> None:
    """Check the settings of an EAGLE-3 arm before its head is made. Raises UserError with a one-line message."""
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
