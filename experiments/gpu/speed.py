"""How long does a rollout take with stock, none and das, on an 8B shape with random weights and forced text?

Each arm has a process of its own and rolls out the same made-up responses (das/verify/forced.py), with 64, 256 and 16
requests at once. In the first epoch das knows no past responses. A last epoch is profiled, not timed: in what share of
the time does the device work, how long does it wait between passes, and which kernels take how long?
"""

import cProfile
import pstats
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from das.engine.methods import STOCK
from experiments.gpu.engines import build
from experiments.gpu.verdict import Scale, Verdict

SHAPE = "8b"
SIBLINGS, EPOCHS = 8, 6  # and one more epoch, which is profiled
UNDRAFTED_EPOCHS = 2  # of arms that have nothing to learn
PROFILED, HOST = range(24, 36), range(40, 52)  # passes of the last epoch in which the device, and the host, is watched
KERNELS = 16  # that are listed, those that take longest first


def speed(scale: Scale, arm: str) -> Verdict:
    """Time one arm. arm: METHOD, or METHOD.HOW: `bits` (batch-invariant kernels, 64 requests only), `compiled` (by
    Inductor)."""
    from das.engine.build import warm_up
    from das.engine.methods import EngineSettings
    from experiments.harness.replays.forced_engines import ForcedRollout, as_recorded, roll_out_forced, set_seats

    method, _, how = arm.partition(".")
    keyed = method != STOCK
    lives = scale.pick([64] if how == "bits" else [64, 16, 256], [8, 2])
    works, end = forced_work(scale, lives)
    options: dict[str, Any] = {}
    if not scale.gpu and method == "das":
        options["budget"] = {"name": "fixed", "tokens": 4}  # a pass of the tiny shape is too short to be worth a draft
    llm = build(
        _in_form(scale, how),
        method,
        SHAPE,
        options,
        invariant=how == "bits",
        max_num_seqs=max(lives),
        max_model_len=scale.pick(1024, 256),
        max_num_batched_tokens=scale.pick(16384, 1024),  # for every request with the longest draft
        enable_prefix_caching=True,
    )
    warm_up(llm)
    settings = EngineSettings("", method, **options)
    speeds: dict[str, Any] = {}
    epochs = EPOCHS if settings.row.drafts else UNDRAFTED_EPOCHS
    for live in lives:
        if settings.row.history:
            llm.collective_rpc("das_use_proposer", args=(f"{live} live", settings.das_options))
        set_seats(llm, live)
        rows = []
        for epoch, work in enumerate(works[live][: epochs + 1], 1):
            profile = Profile(llm) if epoch > epochs else None
            llm.reset_prefix_cache()
            rollout = roll_out_forced(llm, ForcedRollout(work, end, live, epoch), 0, keyed, logprobs=0)
            equal = as_recorded(rollout.responses, work, only_lengths=not keyed)
            report = rollout.report
            row = {
                "live": live,
                "epoch": epoch,
                "rollout_s": rollout.rollout_s,
                "tokens": rollout.tokens,
                "passes": report.decode_steps,
                "tokens_per_pass": rollout.tokens / report.passes,
                "drafted": report.drafted,
                "accepted": rollout.accepted,
                "draft_s": report.draft_s,
                "equal": equal,
            }
            if profile is not None:
                row |= profile.end()
            scale.note({"arm": arm, **row})
            rows.append(row)
        speeds[str(live)] = _summary(rows)
    stock = scale.numbers(f"speed_{'compiled_' if how == 'compiled' else ''}stock").get("speeds", {})
    for requests, found in speeds.items():
        if requests in stock and keyed:
            found["to_stock"] = found["rollout_s"] / stock[requests]["rollout_s"]
            found["last_to_stock"] = found["last_epoch_s"] / stock[requests]["rollout_s"]
    drafted = any(found["accepted"] for found in speeds.values())
    wrong = "" if all(found["equal"] for found in speeds.values()) else "TOKENS THAT WERE NOT RECORDED; "
    wrong += "NO DRAFTED TOKEN WAS ACCEPTED; " if settings.row.drafts and not drafted else ""
    return Verdict(not wrong, wrong + "; ".join(_line(*each) for each in speeds.items()), {"speeds": speeds})


def _in_form(scale: Scale, how: str) -> Scale:
    return replace(scale, form="compiled") if how == "compiled" and scale.form == "graphs" else scale


def forced_work(scale: Scale, lives: list[int]) -> tuple[dict[int, Any], int]:
    """Make up responses that share phrases. Returns live requests -> the responses of each epoch, and the token that
    ends a response."""
    from experiments.gpu.tasks import write_recording
    from experiments.recorded.forced_works import forced_works, with_end
    from experiments.small_policy.shapes import shape_of

    recording: Path = scale.folder / "rollouts.jsonl"
    length, epochs = scale.pick(192, 24), EPOCHS + 1
    vocabulary = scale.pick(shape_of(SHAPE).vocabulary, None) or 512
    write_recording(recording, max(1, max(lives) // SIBLINGS), SIBLINGS * epochs, length, vocabulary - 1)
    cut = forced_works(recording, lives, SIBLINGS, epochs, SIBLINGS * epochs * length, scale.pick(256, 12))
    works, end, _ = with_end(cut, vocabulary, recording)
    recording.unlink()
    return works, end


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Sum the epochs up. The first one, in which history has nothing, is reported beside the others, and so is the
    last one, when the budget has learned most."""
    timed = rows[:-1]
    warm = timed[1:]
    seconds = [row["rollout_s"] for row in warm]
    return {
        "rollout_s": statistics.mean(seconds),
        "spread": max(seconds) / min(seconds) - 1,
        "first_epoch_s": timed[0]["rollout_s"],
        "last_epoch_s": seconds[-1],
        "tokens_per_pass": sum(row["tokens"] for row in warm)
        / sum(row["tokens"] / row["tokens_per_pass"] for row in warm),
        "passes": statistics.mean(row["passes"] for row in warm),
        "ms_a_pass": 1e3 * sum(seconds) / sum(row["passes"] for row in warm),
        "draft_ms_a_pass": 1e3 * sum(row["draft_s"] for row in warm) / sum(row["passes"] for row in warm),
        "drafted": sum(row["drafted"] for row in warm),
        "accepted": sum(row["accepted"] for row in warm),
        "equal": all(row["equal"] for row in rows),
        **{name: rows[-1].get(name) for name in ("device_share", "gap_ms", "device_ms", "kernels")},
    }


def _line(live: str, found: dict[str, Any]) -> str:
    line = f"{live} live {found['rollout_s']:.2f} s, {found['ms_a_pass']:.1f} ms a pass"
    if found["accepted"]:
        line += f", {found['tokens_per_pass']:.2f} tokens/pass"
    if found["device_share"] is not None:
        line += f", device works {found['device_share']:.0%}, waits {found['gap_ms']:.1f} ms a pass"
    if "to_stock" not in found:
        return line
    return line + f", {found['to_stock']:.2f} of stock ({found['last_to_stock']:.2f} in the last epoch)"


class Profile:
    """Watches some of the steps of an engine's next rollout: the device's kernels, then the host's functions. Nothing
    on a CPU."""

    def __init__(self, llm: Any):
        import torch

        self._engine, self._step = llm.llm_engine, llm.llm_engine.step
        self._count = 0
        self._on_device: Any = None
        self._on_host = cProfile.Profile()
        self._found: dict[str, Any] = {}
        self._cuda = torch.cuda.is_available()
        if self._cuda:
            self._engine.step = self._watched

    def _watched(self) -> Any:
        import torch

        if self._count == PROFILED.start:
            self._on_device = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            self._on_device.start()
        if self._count == HOST.start:
            self._on_host.enable()
        outputs = self._step()
        self._count += 1
        if self._count == PROFILED.stop:
            torch.cuda.synchronize()
            self._on_device.stop()
            self._found = device_times(self._on_device.events(), len(PROFILED))
        if self._count == HOST.stop:
            self._on_host.disable()
            self._found["host_ms"] = host_times(self._on_host, len(HOST))
        return outputs

    def end(self) -> dict[str, Any]:
        """Take the watch off again. Returns device_share, device_ms and gap_ms a pass, kernels, host_ms; empty on a
        CPU, or if the rollout had too few steps."""
        if self._cuda:
            self._engine.step = self._step
        return self._found


def host_times(profile: cProfile.Profile, passes: int) -> dict[str, list[float]]:
    """Returns the functions in which the host spends most: ms a pass with what they call, ms without, calls. Python is
    some two times slower while it is watched."""
    stats: Any = pstats.Stats(profile)
    found = {
        f"{Path(file).name}:{line} {name}": [1e3 * total / passes, 1e3 * own / passes, calls / passes]
        for (file, line, name), (_, calls, own, total, _) in stats.stats.items()
    }
    return dict(sorted(found.items(), key=lambda pair: -pair[1][0])[:60])


def device_times(events: Any, passes: int, is_kernel: Callable[[Any], bool] | None = None) -> dict[str, Any]:
    """Sum up a profile. events: with `name`, `time_range.start` and `.end` in microseconds. is_kernel: which of them
    ran on the device; None: by torch's device type."""
    import torch

    on_device = is_kernel or (
        lambda event: event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
    )
    spans = sorted((event.time_range.start, event.time_range.end, event.name) for event in events if on_device(event))
    if not spans:
        return {}
    busy, until = 0.0, spans[0][0]
    by_name: dict[str, list[float]] = {}
    for start, end, name in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
        by_name.setdefault(name[:90], []).append(end - start)
    wall = until - spans[0][0]
    longest = sorted(by_name.items(), key=lambda pair: -sum(pair[1]))[:KERNELS]
    return {
        "device_share": busy / wall,
        "device_ms": busy / passes / 1e3,
        "gap_ms": (wall - busy) / passes / 1e3,
        "kernels": {name: [sum(took) / passes, len(took) / passes] for name, took in longest},  # us and calls a pass
    }
