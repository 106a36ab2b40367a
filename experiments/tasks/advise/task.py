"""task=advise: will speculation pay for my rollouts? From a folder of them, in under a minute; a page with the answer.

result.json: arms.NAME.{rollout_s, low_s, high_s, step_s, rollout_change, low_change, high_change, step_change,
tokens_per_pass}, chosen, changes_by_step, pays_up_to, pays_up_to_dearer, advice, speedup_by_live, seconds. Page:
advice.html, self-contained.
"""

import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig

from analysis import advice_page as page
from das.budget.latency_forms import Form
from das.replay.cluster import Step
from das.replay.engine import PlainEngine
from das.replay.text_engine import TextEngine
from experiments.run.progress import Progress
from experiments.run.run_folder import RunFolder
from experiments.tasks.advise.case import Case, build
from experiments.tasks.advise.models import model_steps

WORTH = 0.03  # a smaller gain of rollout time is not worth a change of settings
LIVE = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)  # requests an engine, looked at
MARGINAL = {"name": "marginal", "tokens": 32, "ratio": 64.0}
FIXED = {"name": "fixed", "tokens": 16}
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {  # budget, drafter, as overrides; the first is ours
    "das": (MARGINAL, {}, "budget=marginal budget.tokens=32 drafter.window=16"),
    "das, window 2": (MARGINAL, {"window": 2}, "budget=marginal budget.tokens=32 drafter.window=2"),
    "das, fixed 16": (FIXED, {}, "budget=fixed budget.tokens=16 drafter.window=16"),
}


def run(config: DictConfig, overrides: list[str], folder: str) -> None:
    """Simulate every arm on a sample of the rollouts; print a table and one line of advice, write the page."""
    start = time.perf_counter()
    task = config.task
    progress = Progress(0)
    run_folder = RunFolder(Path(folder), config)
    case, about = build(task)
    for line in about:
        progress.note(line)
    none, models = model_steps(task, case)  # first: what is wrong with their settings is told at once
    plain = case.simulate(PlainEngine(case.times(), case.simulated_slots))
    expected = {
        "none": plain,
        "ngram": case.text({"name": "fixed", "tokens": 4}, scope="own")[0],
        "suffix-like": case.text(FIXED, scope="problem+request", min_prob=0.1)[0],
    }
    dearer: dict[str, list[Step]] = {}
    engines: dict[str, TextEngine] = {}
    for name, (budget, drafter, _) in SETTINGS.items():
        if len(case.works) > drafter.get("window", 0):  # else it forgets nothing
            expected[name], engines[name] = case.text(budget, **drafter)
            dearer[name], _ = case.dearer().text(budget, **drafter)
    chosen = choose({name: (seconds(expected[name]), seconds(dearer[name])) for name in dearer})
    cheaper, _ = case.cheaper().text(SETTINGS[chosen][0], **SETTINGS[chosen][1])
    rest = rest_share(task, plain)
    arms = {}
    for name, steps in expected.items():
        low, high = (cheaper, dearer[name]) if name == chosen else (steps, steps)
        arms[name] = summary(steps, low, high, plain, rest)
    sampled = seconds(plain) / seconds(none)  # seconds of the sample, for the table
    for name, (steps, low, high) in models.items():
        row = summary(steps, low, high, none, rest)
        arms[name] = {key: value * sampled if key.endswith("_s") else value for key, value in row.items()}
    curve = speedup_by_live(engines["das, fixed 16"], case)
    pays, pays_dearer = (pays_up_to([(live, gains[k]) for live, *gains in curve]) for k in (0, 1))
    best = min(models, key=lambda name: arms[name]["rollout_s"])
    text = advice(arms[chosen], SETTINGS[chosen][2], pays, pays_dearer, (best, arms[best]), case)
    by_step = [mine.rollout_s / other.rollout_s - 1 for mine, other in zip(expected[chosen], plain, strict=True)]
    about.append(
        f"{chosen}, step by step: {', '.join(f'{change:+.0%}' for change in by_step)} (the first knows no history)"
    )
    progress.note(about[-1])
    result = {
        "arms": arms,
        "chosen": chosen,
        "changes_by_step": by_step,
        "pays_up_to": pays,
        "pays_up_to_dearer": pays_dearer,
        "advice": text,
        "speedup_by_live": curve,
        "seconds": time.perf_counter() - start,
    }
    for name, row in arms.items():
        progress.note(
            f"{name:<14s} rollout {row['rollout_s']:8.2f} s ({row['rollout_change']:+.1%}{page.span(row)})  "
            f"step {row['step_s']:8.2f} s ({row['step_change']:+.1%})  "
            f"tokens/pass {row['tokens_per_pass']:.2f}"
        )
    timelines = {name: expected[name][-1].timelines[0] for name in ("none", chosen)}
    page.write(Path(folder) / "advice.html", text, about, arms, curve, timelines, case.scale, case.derived)
    progress.note(text)
    progress.note(f"page: {folder}/advice.html")
    progress.note(f"result: {run_folder.write_result(result)}")


def seconds(steps: Sequence[Step]) -> float:
    """Mean rollout time."""
    return float(np.mean([step.rollout_s for step in steps]))


def choose(found: dict[str, tuple[float, float]]) -> str:
    """The setting with the shortest rollouts, as expected and if dearer together; das where none is 1 % better."""
    best = min(found, key=lambda name: sum(found[name]))
    return best if sum(found[best]) < 0.99 * sum(found["das"]) else "das"


def rest_share(task: DictConfig, plain: Sequence[Step]) -> float:
    """Seconds of a step outside the rollout, over the rollout's without speculation."""
    if task.rest_s is not None:
        return float(task.rest_s) / seconds(plain)
    return 1 / 0.643 - 1  # rollouts are 64.3 % of a step in EfficientRollout's 7B run (58-71 %)


def summary(
    steps: Sequence[Step], low: Sequence[Step], high: Sequence[Step], plain: Sequence[Step], rest: float
) -> dict[str, float]:
    """Means a step; the step's time by Amdahl: the rest of it stays."""
    none, mine, least, most = (seconds(arm) for arm in (plain, steps, low, high))
    return {
        "rollout_s": mine,
        "low_s": least,
        "high_s": most,
        "step_s": mine + rest * none,
        "rollout_change": mine / none - 1,
        "low_change": least / none - 1,
        "high_change": most / none - 1,
        "step_change": (mine + rest * none) / (none + rest * none) - 1,
        "tokens_per_pass": sum(s.tokens for s in steps) / sum(s.passes for s in steps),
    }


def speedup_by_live(engine: TextEngine, case: Case) -> list[tuple[int, float, float]]:
    """Live requests an engine; speedup of a pass at the draft limit that is best there, as expected and if dearer: from
    what drafts were worth in the last step."""
    drafted = np.cumsum(engine.drafts_of[::-1])[::-1][1:] / engine.drafts_of.sum()  # share with at least j tokens
    accepted = np.cumsum(engine.accepts_of[::-1])[::-1][1:] / engine.accepts_of.sum()
    emitted, sent = 1 + np.cumsum(accepted), np.cumsum(drafted)
    context = float(np.mean(case.works[-1].lengths)) / 2

    def gain(form: Form, live: int) -> float:
        b = np.full(len(sent), float(live))
        drafts = form.predict(b, b * (1 + sent), b * context) + case.draft_s * live
        return float(np.max(emitted * form.predict(b, b, b * context) / drafts))

    return [(live, gain(case.form, live), gain(case.dearer().form, live)) for live in LIVE]


def pays_up_to(curve: Sequence[tuple[int, float]]) -> int:
    """Most live requests up to which decoding gains WORTH throughout; 0: nowhere."""
    return max((live for live, _ in takewhile(lambda point: point[1] >= 1 + WORTH, curve)), default=0)


def advice(
    das: dict[str, float], settings: str, pays: int, pays_dearer: int, model: tuple[str, dict[str, float]], case: Case
) -> str:
    """One plain line. Nothing but time is at stake: it is "turn it on" where even at the dear end none is lost.

    model: the best of the drafters that are models.
    """
    gain, sure = -das["rollout_change"], -das["high_change"]
    name, other = model
    more = ""
    if -other["rollout_change"] >= max(gain, 0.0) + WORTH and -other["high_change"] >= max(sure, 0.0):
        more = (
            f" A drafter that is a model ({name}) would save {-other['rollout_change']:.0%} at the acceptance assumed."
        )
    if case.derived:
        more += " Step times are derived: measure yours (task.step_ms) for a narrower range."
    if gain >= WORTH and sure >= 0:
        return (
            f"Turn it on with arm=das {settings}: rollouts should take {gain:.0%} less time ({sure:.0%} to "
            f"{-das['low_change']:.0%}), whole steps {-das['step_change']:.0%} less; it pays "
            f"{where(pays, pays_dearer)}.{more}"
        )
    if gain >= WORTH:
        return (
            f"Do not yet: {gain:.0%} less rollout time is expected, but {-sure:.0%} more if drafted tokens are dearer; "
            f"it pays {where(pays, pays_dearer)}.{more}"
        )
    return (
        f"Do not: speculation from history changes rollout time by {-gain:+.0%}; it pays {where(pays, pays_dearer)}, "
        f"and {das['tokens_per_pass']:.2f} tokens a pass do not make up for what drafts cost.{more}"
    )


def where(pays: int, pays_dearer: int) -> str:
    """At how many live requests an engine, in words."""

    def up_to(live: int) -> str:
        return f"up to about {live} live requests an engine" if live else "at no number of live requests"

    if pays == pays_dearer == LIVE[-1]:
        return f"at every number of live requests an engine looked at, up to {LIVE[-1]}"
    if pays == pays_dearer:
        return up_to(pays)
    return f"{up_to(pays)}{' and more' * (pays == LIVE[-1])} ({pays_dearer} if drafted tokens are dearer)"
