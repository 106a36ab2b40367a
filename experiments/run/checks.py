"""Check the kind and the size of a config's values. The value of a key in configs/ shows which kind is right."""

from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.run.errors import CONFIGS, UserError
from experiments.run.known_keys import GROUPS, NAMED, OPEN, check_keys, leaves, plain_tree
from experiments.run.trl_arguments import TAKEN

LARGEST = 2**31 - 1  # largest value of any number that is not in LIMITS

# Keys that are null everywhere in configs/, each with an example value that shows the right kind.
EXAMPLES: dict[str, Any] = {
    "resume": "outputs/compare/DATE",
    "paper": "das",
    "arm.speculative.model": "folder",
    "trainer.model_init_kwargs": {},
    "cluster.address": "127.0.0.1:6379",
    "data.path": "problems.jsonl",
    "policy.cold_start": "words",
    "data.system": "text",
    "drafter.warm": "history.npz",
    "head.path": "folder",
    "head.depth": 3,
    "eval.data": "math500",
    "eval.path": "problems.jsonl",
    "eval.task": "spell_backward",
    "eval.problems": None,
    "eval.temperature": 0.6,
    "eval.k": [1, 4],
    "task.k": [1, 4],
    "budget.latency": "latency.json",
    "task.rollouts": "outputs/compare/DATE",
    "task.run": "outputs/compare/DATE",
    "task.shape": "100m",
    "task.trained": "folder",
    "task.tables": "folder",
    "task.measured": "outputs/check_gpu",
    "task.parts": ["environment"],
    "task.rest_s": 1.5,
    "task.w8_rate": 0.99,
    "task.w4_rate": 0.97,
    "task.eagle_tau": 2.77,
    "task.mtp_rates": [0.9, 0.8],
    "task.step_ms": [[1, 9.5]],
    **{f"trainer.{name}": value for name, value in TAKEN.items()},
}
# Texts of which a key's value must be one.
CHOICES: dict[str, tuple[str, ...]] = {
    "engine.dtype": ("float32", "bfloat16", "float16", "auto"),
    "trainer.loss_type": ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo", "vespo"),
    "trainer.importance_sampling_level": ("token", "sequence"),
    "trainer.scale_rewards": ("group", "batch", "none"),
    "trainer.vllm_importance_sampling_mode": ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
}
# Keys that may be fractions, although configs/ has whole numbers for them.
FRACTIONS = {"budget.ratio", "budget.margin", "reward.timeout_s", "reward.limits.wall_s", "data.weights"}
FRACTIONS |= {"data.held_out", "task.draft_us", "task.minutes", "task.warm_up_minutes", "task.min_prob"}
# Smallest and largest value of a key. No run of the papers comes near the largest one: only a typing error exceeds it.
LIMITS: dict[str, tuple[float, float]] = {
    "seed": (0, 2**32 - 1),  # NumPy's range
    "arm.speculative.num_speculative_tokens": (1, 4096),  # tokens of a request and pass
    "trainer.max_steps": (1, 10**7),
    "trainer.per_device_train_batch_size": (1, 2**16),  # responses; DAS: 2,048 over all processes
    "trainer.gradient_accumulation_steps": (1, 2**16),
    "trainer.steps_per_generation": (1, 2**16),
    "trainer.num_iterations": (1, 2**16),
    "trainer.max_completion_length": (1, 2**22),  # tokens
    "trainer.temperature": (0.01, 100),  # log-probs are divided by it
    "trainer.learning_rate": (0, 1),  # 0: the policy stays as it is
    "trainer.lag": (0, 8),  # training steps
    "trainer.partial": (0, 2**16),  # groups
    "trainer.partial_tokens": (0, 2**22),  # tokens of a response
    "trainer.dynamic_sampling": (0, 1000),  # draws; 1,000 find a group whose rewards differ among 1,000 problems
    "engine.threads": (1, 1024),
    "engine.kv_cache_gib": (1, 2**14),
    "engine.max_model_len": (2, 2**22),  # tokens
    "engine.max_num_seqs": (1, 2**16),
    "engine.max_num_batched_tokens": (1, 2**24),
    "engine.gpu_memory_utilization": (0.001, 1),
    "engine.tensor_parallel_size": (1, 1024),
    "engine.branch_blocks": (0, 10**6),  # KV blocks
    "arm.branch_blocks": (0, 10**6),
    "engine.weight_check_every": (1, 10**7),  # syncs
    "engine.processes": (1, 2**16),
    "cluster.engines": (1, 4096),
    "cluster.silent_s": (0.1, 86400),
    "cluster.start_s": (1, 86400),
    "drafter.min_prob": (0, 1),
    "head.responses": (8, 10**6),
    "head.max_tokens": (2, 2**22),
    "head.epochs": (1, 10**4),
    "head.share": (1e-6, 1),
    "head.matrix_learning_rate": (0, 1),
    "head.other_learning_rate": (0, 1),
    "budget.tokens": (1, 4096),  # tokens of a request and pass
    "budget.ratio": (1e-6, 1e9),
    "data.problems": (1, 10**7),
    "data.chain_steps": (2, 8),
    "data.events": (1, 10),
    "reward.parallel": (1, 1024),
    "reward.timeout_s": (0.01, 86400),
    "reward.limits.cpu_s": (1, 2**20),
    "reward.limits.wall_s": (0.01, 2**20),
    "reward.limits.memory_mb": (1, 2**20),
    "reward.limits.file_mb": (1, 2**20),
    "reward.limits.output_kb": (1, 2**20),
    "reward.limits.open_files": (1, 2**20),
    "eval.every": (0, 10**7),  # training steps
    "eval.problems": (1, 10**6),
    "eval.samples": (1, 2**16),
    "eval.temperature": (0.01, 100),
    "eval.k": (1, 2**16),
    "checkpoint.keep": (2, LARGEST),  # 2, because the newest checkpoint may be incomplete
    "task.k": (1, 2**16),
    "task.steps": (1, 10**7),
    "task.max_num_seqs": (1, 2**16),
    "task.engines": (1, 2**16),
    "task.tail": (0.01, 1),
    "task.w8_rate": (0, 1),
    "task.w4_rate": (0, 1),
    "task.mtp_rates": (0, 1),
}
TEMPERATURES = ("trainer.temperature", "eval.temperature")  # 0 is greedy, where nothing is trained


def check_values(config: DictConfig) -> None:
    """Refuse settings that nothing reads, values of the wrong kind, NaN, and numbers that are negative or implausibly
    large. Raises UserError.
    """
    given = {str(name): _get(config, str(name)) for name in config if name != "hydra"}
    _check_names(given)
    check_keys(given)
    needed = (*plain_tree(CONFIGS / "config.yaml"), *GROUPS, "task")
    task = str(config.task.name)
    examples, greedy = _examples(task), TEMPERATURES[task != "evaluate" :]
    for key, value in leaves({name: given.get(name) for name in needed}):
        plain_key = key.replace("arm.budget.", "budget.").replace("budget.over.", "budget.")
        _refuse_group(plain_key, examples)
        if not (plain_key in greedy and _is_number(value) and value == 0):
            _check(key, plain_key, value, examples.get(plain_key, []))


def _check_names(given: dict[str, Any]) -> None:
    """Refuse names of groups that are no text, or that no file of configs/ has although they decide what is done."""
    for group, settings in given.items():
        if group in GROUPS and not isinstance(settings, dict):
            raise UserError(f"{group}={_short(settings)}: must be a group of settings")
        if isinstance(settings, dict) and not isinstance(name := settings.get("name", ""), str):
            raise UserError(f"{group}.name={_short(name)}: must be text, one of configs/{group}")
        known = sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))
        if group in NAMED and name not in known and not _is_label(group, settings):
            raise UserError(f"{group}.name={_short(name)}: choose with {group}=NAME, one of {', '.join(known)}")


def _is_label(group: str, settings: dict[str, Any]) -> bool:
    """Return whether a group's name decides nothing, or names a class of the user: of a policy from a folder, of
    problems from a file, of the user's own budget."""
    decided_by = {"policy": "path", "data": "columns"}.get(group, "")
    return settings.get(decided_by) is not None or (group == "budget" and ":" in settings.get("name", ""))


def at_least_one(task: DictConfig, *names: str) -> None:
    """Refuse counts in a task's settings that are below 1. Raises UserError."""
    for name in names:
        if int(task[name]) < 1:
            raise UserError(f"task.{name}={task[name]}: must be at least 1")


def _get(config: DictConfig, name: str) -> Any:
    """A group or a single setting of the config, as plain values. Raises UserError if an interpolation is wrong."""
    try:
        value = config.get(name)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException as error:
        raise UserError(f"{name}: {error}") from error


@cache
def _examples(task: str) -> dict[str, list[Any]]:
    """Collect all values that each key has somewhere in configs/, but of configs/task only the file of `task`."""
    files = [("", CONFIGS / "config.yaml"), ("task", CONFIGS / "task" / f"{task}.yaml")]
    files += [(group, path) for group in GROUPS for path in sorted((CONFIGS / group).glob("*.yaml"))]
    examples: dict[str, list[Any]] = {}
    for group, path in files:
        for key, value in leaves(plain_tree(path), group):
            if not (isinstance(value, str) and value.startswith("${") and value.endswith("}")):
                examples.setdefault(key, []).append(value)
            *parents, _ = key.split(".")
            for depth in range(1, len(parents) + 1):
                examples.setdefault(".".join(parents[:depth]), []).append({})
    for key, value in (*EXAMPLES.items(), *((name, {}) for name in OPEN)):
        examples.setdefault(key, []).append(value)
    return examples


def _refuse_group(key: str, examples: dict[str, list[Any]]) -> None:
    """Refuse a key below a setting that is a single value, such as data.kinds.walk.a."""
    above = ""
    for part in key.split(".")[:-1]:
        above = f"{above}.{part}".removeprefix(".")
        known = examples.get(above, [])
        values = [example for example in known if example is not None]
        if values and not any(isinstance(example, dict) for example in values):
            raise UserError(f"{above}: must be {_kinds(known)}, not a group of settings")


def _check(key: str, plain_key: str, value: Any, examples: list[Any]) -> None:
    """Refuse a value that has another kind than the examples of its key, or is beyond the limits. plain_key: the key as
    LIMITS and FRACTIONS have it (budget.KEY, even for the budget of an arm)."""
    if value is None:
        if examples and None not in examples:
            raise UserError(f"{key}=null: must be {_kinds(examples)}")
        return
    if isinstance(value, dict):
        _refuse_unless(any(isinstance(example, dict) for example in examples) or not examples, key, value, examples)
        return
    items = _flat(value)
    _check_kind(key, plain_key, value, [example for example in examples if example is not None])
    if value not in (choices := CHOICES.get(plain_key, (value,))):
        raise UserError(f"{key}={_short(value)}: choose {', '.join(choices)}")
    smallest, largest = LIMITS.get(plain_key, (0, LARGEST))
    for item in items:
        if _is_number(item) and not smallest <= item <= largest:  # NaN is never between them
            zero = "; 0, greedy, is for task=evaluate and eval.temperature" if plain_key in TEMPERATURES else ""
            raise UserError(f"{key}={_short(value)}: must be a number from {smallest:g} to {largest:.10g}{zero}")


def _check_kind(key: str, plain_key: str, value: Any, examples: list[Any]) -> None:
    if not examples:
        return
    wants_list = isinstance(value, list)
    alike = [example for example in examples if isinstance(example, list) == wants_list]
    _refuse_unless(bool(alike), key, value, examples)
    kinds = {_kind(item) for example in alike for item in _flat(example)}
    if plain_key in FRACTIONS or "a number" in kinds:
        kinds |= {"a whole number", "a number"}
    for item in _flat(value):
        _refuse_unless(not kinds or _kind(item) in kinds, key, value, examples)


def _refuse_unless(fits: bool, key: str, value: Any, examples: list[Any]) -> None:
    if not fits:
        raise UserError(f"{key}={_short(value)}: must be {_kinds(examples)}")


def _flat(value: Any) -> list[Any]:
    """The items of a list of lists; the value itself if it is no list."""
    return [item for inner in value for item in _flat(inner)] if isinstance(value, list) else [value]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int):
        return "a whole number"
    if isinstance(value, float):
        return "a number"
    return "text" if isinstance(value, str) else "a group of settings"


def _kinds(examples: list[Any]) -> str:
    """Return in words which kinds of values the examples have, such as "a whole number". Error messages say this."""
    words = set()
    for example in examples:
        kind = " and ".join(sorted({_kind(item) for item in _flat(example)})) if example is not None else "null"
        words.add(f"a list ({kind or 'of anything'})" if isinstance(example, list) else kind)
    return " or ".join(sorted(words))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
