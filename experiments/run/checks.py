"""Are a config's values of the right kind and of a sane size? What kind a key has is written in configs/, once."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf

from experiments.run.errors import CONFIGS, UserError

GROUPS = ("policy", "data", "reward", "trainer", "engine", "drafter", "budget", "arm")
OWN = ("arms", "vary", "seed", "schedule", "checkpoint", "resume", "wandb", "wandb_project", "out", "cache", "profile")
LARGEST = 2**31 - 1  # of any number without limits of its own

# The kind of keys that are null wherever configs/ name them, as an example.
EXAMPLES: dict[str, Any] = {
    "resume": "outputs/compare/DATE",
    "data.path": "problems.jsonl",
    "data.system": "text",
    "drafter.warm": "history.npz",
    "budget.latency": "latency.json",
    "task.rollouts": "outputs/compare/DATE",
    "task.run": "outputs/compare/DATE",
    "task.engine_run": "outputs/compare/DATE",
    "task.tables": "folder",
    "task.rest_s": 1.5,
    "task.step_ms": [[1, 9.5]],
}
# Written as whole numbers in configs/, but halves make sense.
FRACTIONS = {"budget.ratio", "budget.margin", "reward.timeout_s", "reward.limits.wall_s", "data.weights"}
FRACTIONS |= {"data.held_out", "task.draft_us", "task.minutes", "task.warm_up_minutes", "task.min_prob"}
# Least and most. Most is far above what any run of the papers takes: a slip of the finger, not a wish, lies beyond.
LIMITS: dict[str, tuple[float, float]] = {
    "seed": (0, 2**32 - 1),  # NumPy's range
    "trainer.max_steps": (1, 10**7),
    "trainer.per_device_train_batch_size": (1, 2**16),  # responses; DAS: 2,048 over all processes
    "trainer.gradient_accumulation_steps": (1, 2**16),
    "trainer.max_completion_length": (1, 2**22),  # tokens
    "trainer.temperature": (0.01, 100),  # log-probs are divided by it
    "trainer.learning_rate": (0, 1),  # 0: the policy stays as it is
    "engine.threads": (1, 1024),
    "engine.kv_cache_gib": (1, 2**14),
    "engine.max_model_len": (2, 2**22),  # tokens
    "engine.max_num_seqs": (1, 2**16),
    "engine.max_num_batched_tokens": (1, 2**24),
    "engine.gpu_memory_utilization": (0.001, 1),
    "engine.tensor_parallel_size": (1, 1024),
    "engine.processes": (1, 2**16),
    "drafter.min_prob": (0, 1),
    "budget.tokens": (1, 4096),  # tokens a request and pass
    "budget.ratio": (1e-6, 1e9),
    "data.problems": (1, 10**7),
    "data.chain_steps": (2, 8),
    "reward.parallel": (1, 1024),
    "reward.timeout_s": (0.01, 86400),
    "task.steps": (1, 10**7),
    "task.max_num_seqs": (1, 2**16),
    "task.engines": (1, 2**16),
    "task.w4_rate": (0, 1),
    "task.mtp_rates": (0, 1),
}


def check_values(config: DictConfig) -> None:
    """Refuse a number that is text, NaN, negative or absurd, text that is a number, and so on. Raises UserError."""
    for key, value in _leaves({name: _get(config, name) for name in (*OWN, *GROUPS, "task")}):
        plain_key = key.replace("arm.budget.", "budget.").replace("budget.over.", "budget.")
        _check(key, plain_key, value, _examples(str(config.task.name)).get(plain_key, ()))


def _get(config: DictConfig, name: str) -> Any:
    value = config.get(name)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value); an empty group counts as a value."""
    if not isinstance(node, dict) or (prefix and not node):
        yield prefix, node
        return
    for key, value in node.items():
        yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))


@cache
def _examples(task: str) -> dict[str, list[Any]]:
    """Every value that configs/ give a key; those of other tasks do not count."""
    files = [("", CONFIGS / "config.yaml"), ("task", CONFIGS / "task" / f"{task}.yaml")]
    files += [(group, path) for group in GROUPS for path in sorted((CONFIGS / group).glob("*.yaml"))]
    found: dict[str, list[Any]] = {}
    for group, path in files:
        tree = OmegaConf.to_container(OmegaConf.load(path))
        assert isinstance(tree, dict)
        leaves = [*_leaves({key: value for key, value in tree.items() if key not in ("defaults", "hydra")}, group)]
        for key, value in leaves:
            if not (isinstance(value, str) and value.startswith("${") and value.endswith("}")):
                found.setdefault(key, []).append(value)
            *parents, _ = key.split(".")
            for depth in range(1, len(parents) + 1):
                found.setdefault(".".join(parents[:depth]), []).append({})
    for key, value in EXAMPLES.items():
        found.setdefault(key, []).append(value)
    return found


def _check(key: str, plain_key: str, value: Any, examples: Any) -> None:
    if value is None:
        if examples and None not in examples:
            raise UserError(f"{key}=null: must be {_kinds(examples)}")
        return
    if isinstance(value, dict):
        _refuse_unless(any(isinstance(example, dict) for example in examples) or not examples, key, value, examples)
        return
    items = _flat(value)
    given = [example for example in examples if example is not None]
    if given:
        lists = [example for example in given if isinstance(example, list)]
        like = lists if isinstance(value, list) else [example for example in given if not isinstance(example, list)]
        _refuse_unless(bool(like), key, value, given)
        kinds = {_kind(item) for example in like for item in _flat(example)}
        if plain_key in FRACTIONS or "a number" in kinds:
            kinds |= {"a whole number", "a number"}
        for item in items:
            _refuse_unless(not kinds or _kind(item) in kinds, key, value, given)
    least, most = LIMITS.get(plain_key, (0, LARGEST))
    for item in items:
        if isinstance(item, int | float) and not isinstance(item, bool) and not least <= item <= most:  # NaN is not
            raise UserError(f"{key}={_short(value)}: must be a number from {least:g} to {most:.10g}")


def _refuse_unless(fits: bool, key: str, value: Any, examples: Any) -> None:
    if not fits:
        raise UserError(f"{key}={_short(value)}: must be {_kinds(examples)}")


def _flat(value: Any) -> list[Any]:
    """What stands in a list of lists; the value itself where it is none."""
    return [item for inner in value for item in _flat(inner)] if isinstance(value, list) else [value]


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int):
        return "a whole number"
    if isinstance(value, float):
        return "a number"
    return "text" if isinstance(value, str) else "a group of settings"


def _kinds(examples: Any) -> str:
    """The kinds of the examples in words."""
    words = set()
    for example in examples:
        kind = " and ".join(sorted({_kind(item) for item in _flat(example)})) if example is not None else "null"
        words.add(f"a list ({kind or 'of anything'})" if isinstance(example, list) else kind)
    return " or ".join(sorted(words))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def at_least_one(task: DictConfig, *names: str) -> None:
    """Refuse counts of a task's settings below 1. Raises UserError."""
    for name in names:
        if int(task[name]) < 1:
            raise UserError(f"task.{name}={task[name]}: must be at least 1")
