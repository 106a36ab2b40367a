"""What excludes what: one table, from which a run is refused and the docs are made.

A condition is KEY (the setting is on: neither 0, false, null nor absent), KEY=A|B or KEY!=A|B. The key of a group
stands for its name. Conditions with a space between them are alternatives.
"""

import re
from collections.abc import Mapping
from typing import Any

from experiments.run.errors import UserError
from experiments.settings.typed import shown

RUNS = "experiment|reproduce"  # tasks that pass their settings on to runs of other tasks
TRAINING = f"compare|train|{RUNS}"  # tasks that train
AHEAD = "trainer.lag engine.own_process"
STOCK = "arm.method=stock"
UNTRAINED = "task.recorded task.train=false"  # comparisons in which nobody trains

# (conditions, conditions, what to do): the line begins with the setting of the first condition that holds. {KEY} stands
# for the value of KEY.
CONFLICTS = (
    (
        "trainer.temperature=0",
        "task!=evaluate",
        "must be above 0: greedy is for task=evaluate and eval.temperature",
    ),
    (
        "trainer.generation_kwargs.seed!=null",
        "task",
        "each response has a seed of its own, made from the setting seed; set that",
    ),
    (AHEAD, f"task!={TRAINING}", "task={task} trains nothing; leave it out"),
    ("engine.own_process", "cluster=ray", "engines of cluster=ray have processes of their own; leave it out"),
    ("engine.own_process", STOCK, "arm=stock rolls out in the trainer's process; leave it out"),
    ("eval.every", f"task!={TRAINING}", "task={task} trains nothing; set eval.every=0 (or task=evaluate)"),
    (
        "eval.every",
        "engine.processes!=1",
        "several processes cannot evaluate yet; set eval.every=0, and measure the final policy with task=evaluate",
    ),
    ("cluster=ray", f"task!=rollout|{TRAINING}", "task={task} starts no cluster; set cluster=none"),
    ("cluster=ray", STOCK, "arm=stock is vLLM without das, which a cluster does not start; leave it out"),
    ("cluster=ray", "drafter.warm", "engines of a cluster begin without a history; set drafter.warm=null"),
    ("drafter.warm", "arm.method=self_draft", "self_draft drafts without a history; use arm=das"),
    ("arm.online", "arm.method!=eagle3", "only an EAGLE-3 head learns in the run, and arm {arm} has none"),
    ("arm.online", "engine.processes!=1", "what drafts is trained in one process: set engine.processes=1"),
    ("task.lock_step", "engine.processes!=1", "all arms run at once, a process each; set task.lock_step=false"),
    (
        "task.train_once",
        "task.lock_step=false",
        "arms need the first one's weights of each step; set task.lock_step=true",
    ),
    (UNTRAINED, "task.train_once eval.every", "nobody trains; leave the other setting out"),
    (UNTRAINED, "task.lock_step=false", "arms that do not train roll out in turns; set task.lock_step=true"),
    (
        "task.recorded",
        f"{AHEAD} cluster=ray drafter.warm",
        "an engine emits the recorded text step by step; leave the other setting out",
    ),
    ("task.step_ms", "task.latency", "both are measured times: give one of task.step_ms and task.latency"),
)


def refuse_conflicts(config: Mapping[str, Any]) -> None:
    """Raise UserError, with the line of the table, if two settings of a config exclude each other."""
    for first, second, line in CONFLICTS:
        held = [condition for condition in first.split() if _holds(condition, config)]
        if held and any(_holds(condition, config) for condition in second.split()):
            key = re.split("!?=", held[0])[0]
            words = re.sub(r"\{([\w.]+)\}", lambda found: shown(_value(found[1], config)), line)
            raise UserError(f"{key}={shown(_value(key, config))}: {words}")


def table() -> str:
    """Return the table of conflicts in Markdown, for the docs: a row for each setting, without the advice."""
    against: dict[str, list[str]] = {}
    for first, second, _ in CONFLICTS:
        against.setdefault(first, []).append(second)
    rows = [("setting", "not with"), ("---", "---"), *((_code(key), _code(" ".join(against[key]))) for key in against)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _code(conditions: str) -> str:
    return ", ".join(f"`{condition}`" for condition in conditions.replace("|", "\\|").split())


def _holds(condition: str, config: Mapping[str, Any]) -> bool:
    (key, negated, wanted) = re.findall(r"([\w.]+)(!?)=?(.*)", condition)[0]
    value = _value(key, config)
    if not wanted:
        return value not in (None, False, 0, "")
    return ((f"{value:g}" if isinstance(value, float) else shown(value)) in wanted.split("|")) != bool(negated)


def _value(key: str, config: Mapping[str, Any]) -> Any:
    """Return the value of a setting, the name of a group; None if there is none."""
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value.get("name") if isinstance(value, Mapping) else value
