"""NeMo RL (arXiv 2604.26779), recomputed: its projection for a 235B on 512 and 2,048 GPUs, simulated by our engines."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from analysis.report import Line, Section, Table, curves
from experiments.run.progress import Progress
from experiments.settings.checked import Settings
from experiments.simulate.engine import (
    PlainEngine,
    ProfiledDrafter,
    ProfileEngine,
    Step,
    constant_rate,
    simulate_rollout,
)
from experiments.simulate.gpu_times import GpuTimes, Model, gpu_times
from experiments.simulate.rollouts import chains_of_thought
from experiments.simulate.workload import of_lengths

PREFACE = "The paper's numbers are second-hand (three public summaries that agree)."
BATCH, PROMPT = 4096, 200  # responses a step, published; tokens of a prompt, assumed
ENGINE = 8  # GPUs of an engine, in tensor and expert parallel; assumed
LINK = 450e9  # bytes per second of an all-reduce: of NVLink 5, half of a direction, as an A100's NVLink 3 reached
# An EAGLE-3 head: one dense layer of the policy's width with a vocabulary of 32,000, as heads published for this model.
HEAD = Model(1, 4096, 12288, 64, 4, 32000)
MFU, TRAINED = 0.15, 8.0  # assumed: share of bf16's operations; operations a parameter and token (backward, log-probs)
SYNC_S = 5.0  # assumed: seconds to bring new weights into the engines
ROLLING = 0.75  # of the GPUs, in asynchronous training: 12 of 16 nodes, as the paper's 8B
SIMULATED = 8  # engines of a rollout: those with the longest responses, and those with the most tokens
# Drafted tokens, and tokens a pass: as published. The last is not: all drafted tokens are accepted in the best cell.
DRAFTS = ((3, 3.0), (5, 4.0), (7, 5.0), (7, 8.0))
FAST_REDUCE = 10e-6  # seconds of an all-reduce; the other assumption, to see what hangs on it
ASYNC_LAG = 2

DIFFERS = (
    "Nothing is fitted to the paper's four points. A pass reads the experts that its rows choose (at random; of the "
    "busiest GPU), keys and values, and has two all-reduces in each of 94 layers and the gaps between a layer's "
    "kernels. These two do not shrink with more GPUs, and drafted tokens share them: so drafts bring nearly what they "
    "accept, as the paper has it. Few live requests choose fewer experts than their drafts, which then cost more. The "
    "step gains more than the paper's wherever the rollout's share of it, which hangs on assumed lengths and training, "
    "is larger here. Asynchronous training without drafts already hides training and the longest responses, so drafts "
    "shorten all that is left. The 8B's measured cost of a drafted token would leave little of all this."
)


@dataclass(frozen=True)
class Training:
    """How the GPUs are used. lag: steps between the weights that roll out and the update; 0: one after the other."""

    gpus: int
    lag: int

    @property
    def engines(self) -> int:
        """The number of engines: of all GPUs, or of those that roll out beside the training."""
        return round(self.gpus * (ROLLING if self.lag else 1.0)) // ENGINE

    def step_s(self, rollout_s: float, tokens: int) -> float:
        """Return the seconds of a step. tokens: of all prompts and responses."""
        policy = times().model
        trained_by = self.gpus - self.engines * ENGINE * bool(self.lag)
        train_s = TRAINED / 2 * policy.flop * tokens / (trained_by * times().gpu.flops * MFU)
        return SYNC_S + (max(rollout_s, train_s) if self.lag else rollout_s + train_s)

    @property
    def name(self) -> str:
        """The name in tables."""
        return f"{self.gpus} GPUs, {f'lag {self.lag}' if self.lag else 'synchronous'}"


def times() -> GpuTimes:
    """Return the times of passes of the 235B in FP8 on an engine of Blackwell GPUs."""
    plain = replace(gpu_times("B200", "235B"), das=False, waits=False)
    return replace(plain, gpus=ENGINE, weight_bytes=1.0, link=LINK)


def drafter(gamma: int, tau: float, policy: GpuTimes) -> ProfiledDrafter:
    """Return an EAGLE-3 head that drafts gamma tokens, of which tau - 1 are accepted on average."""
    head = replace(policy, model=HEAD)

    def cycle(live: float, context: float) -> float:
        """The drafts come before the pass on the device, while the host does its work."""
        b, x = np.array(live), np.array(context)
        device = gamma * float(head.device(b, b, x)) + float(policy.device(b, (1 + gamma) * b, x))
        return max(device, float(policy.on_host(b, tau * b)))

    return ProfiledDrafter(constant_rate(tau, gamma), draft=lambda live, context: 0.0, verify=cycle)


def batch(lengths: np.ndarray, responses: int) -> np.ndarray:
    """Return the lengths of so many responses, drawn from the recorded ones."""
    return np.random.default_rng(0).choice(lengths, responses)


def rollout(training: Training, lengths: np.ndarray, drafts: tuple[int, float] | None, policy: GpuTimes) -> Step:
    """Simulate a rollout of BATCH responses. With a lag its engines go on with the next steps' requests, so lag + 1
    steps are one queue, in seats for one of them.

    lengths: of the queue's responses. policy: times of passes.
    """
    seats = BATCH // training.engines
    placed = [lengths[e :: training.engines] for e in range(training.engines)]
    longest = sorted(range(len(placed)), key=lambda e: -int(placed[e].max()))[: SIMULATED // 2]
    fullest = sorted(range(len(placed)), key=lambda e: -int(placed[e].sum()))[: SIMULATED // 2]
    chosen = sorted({*longest, *fullest})
    ends = np.cumsum([len(placed[e]) for e in chosen]).tolist()
    members = [range(end - len(placed[e]), end) for end, e in zip(ends, chosen, strict=True)]
    work = of_lengths(np.concatenate([placed[e] for e in chosen]), PROMPT)
    engines = [
        PlainEngine(policy, seats) if drafts is None else ProfileEngine(policy, seats, drafter(*drafts, policy), seed=e)
        for e in chosen
    ]
    return simulate_rollout(work, engines, members, 1)


def sections(task: Any, budget: Settings, published: dict[str, Any], folder: Path, progress: Progress) -> list[Section]:
    """Simulate the 235B with and without drafts, synchronously and not, and make the section. Its figure is in
    `folder`."""
    recorded = chains_of_thought(Path(task.traces), int(task.problems)).lengths
    rows: list[list[str]] = []
    gains: dict[tuple[int, int, tuple[int, float] | None], tuple[float, float]] = {}
    drawn = {}
    tokens = int(batch(recorded, BATCH).sum()) + BATCH * PROMPT
    for gpus in (512, 2048):
        synchronous_s = 0.0  # a synchronous step without drafts
        for training in (Training(gpus, 0), Training(gpus, ASYNC_LAG)):
            plain = 0.0, 0.0
            for drafts in (None, *DRAFTS):
                step = rollout(training, batch(recorded, BATCH * (training.lag + 1)), drafts, times())
                rollout_s = step.rollout_s / (training.lag + 1)
                step_s = training.step_s(rollout_s, tokens)
                plain = plain if drafts else (rollout_s, step_s)
                synchronous_s = synchronous_s or step_s
                gain = gains[gpus, training.lag, drafts] = plain[0] / rollout_s, plain[1] / step_s
                name = f"k {drafts[0]}, {drafts[1]:g} tokens a pass" if drafts else "none"
                faster = ["{:.2f} / {:.2f}x".format(*gain), f"{synchronous_s / step_s:.2f}x"]
                rows.append([training.name, name, f"{rollout_s:.0f}", f"{step_s:.0f}", *faster])
                progress.note(" | ".join(rows[-1]))
                if not training.lag and drafts in (None, DRAFTS[1]):
                    timeline = max(step.timelines, key=lambda each: float(each["time_s"][-1]))
                    drawn[f"{gpus} GPUs, {name}"] = timeline["time_s"], timeline["live"]
    live = curves(folder / "nemo_live.png", drawn, "seconds", "live requests of an engine", "235B, synchronous rollout")
    section = Section(
        "235B-A22B, simulated by the paper: speedup of rollout / step",
        f"{BATCH} responses a step with recorded lengths (mean {recorded.mean():.0f} words, longest {recorded.max()}), "
        f"FP8 weights, engines of {ENGINE} GPUs. Assumed: all-reduces of {1e6 * times().reduce:.0f} us (2 A100s, "
        f"measured) and {LINK / 1e9:.0f} GB/s; training at {MFU:.0%} of bf16's peak; {SYNC_S:.0f} s for new weights; "
        f"with a lag {ROLLING:.0%} of the GPUs roll out. Acceptance as published.",
        beside_the_paper(published, gains, recorded),
        DIFFERS,
        [live],
        Table(("", "drafts", "rollout, s", "step, s", "rollout / step faster", "than synchronous without"), rows),
    )
    return [section]


def beside_the_paper(
    published: dict[str, Any],
    gains: dict[tuple[int, int, tuple[int, float] | None], tuple[float, float]],
    recorded: np.ndarray,
) -> list[Line]:
    """Return the published points with ours, with faster all-reduces, and with the 8B's measured cost of drafts."""
    # What a further drafted token of the 8B cost in the paper's runs, in passes (RL-Zero, 3 to 7 drafted).
    cost = {each["drafter"]: each["zero"]["cycle_cost"] for each in published["nemo_drafters"]["data"]["rows"]}
    measured = (cost["EAGLE-3 k=7"] - cost["EAGLE-3 k=3, DAPO init, offline"]) / 4
    fast = replace(times(), reduce=FAST_REDUCE)
    lines = []
    for point in published["nemo_simulator"]["data"]["points"]:
        drafts = point["k"] or DRAFTS[-1][0], float(point["acceptance_length"] or DRAFTS[-1][1])
        training = Training(point["gpus"], 0 if point["lag"] == "sync" else int(point["lag"]))
        queue = batch(recorded, BATCH * (training.lag + 1))
        plain, drafted = (rollout(training, queue, each, fast).rollout_s for each in (None, drafts))
        lines.append(
            Line(
                f"{training.name}, k {drafts[0]}, {drafts[1]:g} tokens a pass",
                "",
                f"{point['rollout']} / {point['step']}x",
                "{:.2f} / {:.2f}x".format(*gains[training.gpus, training.lag, drafts])
                + f"; rollout with all-reduces of {1e6 * FAST_REDUCE:.0f} us {plain / drafted:.2f}x, "
                f"at the 8B's measured cost of drafts {drafts[1] / (1 + measured * drafts[0]):.2f}x",
            )
        )
    return lines
