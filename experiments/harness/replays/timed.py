"""One timed comparison: engines in processes of their own do the same rollouts, one arm after the other, so that noise
of the machine hits all alike. Responses are what the policy samples (OwnRollout), or recorded ones (ForcedRollout).
"""

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from das.budget import longest_draft
from das.engine.rollouts.rollout import Rollout, RolloutRequest, request_seed, roll_out
from experiments.harness.engine import engine_settings, prepare_process
from experiments.harness.failures import expect, log_of, reporting, tell
from experiments.harness.replays.forced_engines import ForcedRollout, as_recorded, roll_out_forced, set_seats
from experiments.harness.rollout_steps import Prompt
from experiments.run.errors import RunFailed
from experiments.run.processes import spawned
from experiments.run.rollout_row import rollout_row
from experiments.settings.config import RunConfig, run_config
from experiments.training.stock import build_in_process

BASELINE = "none"  # the arm without drafts


@dataclass(frozen=True)
class OwnRollout:
    """Requests whose responses the policy samples. All run at once."""

    prompts: Sequence[Prompt]
    problems: Sequence[str]
    longest: Sequence[int]  # most tokens of each response
    step: int
    next_history_tick: int

    @property
    def live(self) -> int:
        """The number of requests that run at once."""
        return len(self.prompts)


@dataclass(frozen=True)
class Work:
    """A rollout that every arm does. history: each arm's drafter has a history of past responses for each such name.
    names: further columns of its rows in metrics.jsonl, with `step`."""

    history: str
    names: Mapping[str, Any]
    rollout: OwnRollout | ForcedRollout


@dataclass
class Timed:
    """What became of an arm's rollout."""

    row: dict[str, Any]  # row of metrics.jsonl
    timeline: dict[str, Any]  # of its passes
    equal: bool  # False: it emitted other tokens than the recorded ones; arm stock: another number of them


class TimedEngines:
    """Engines, each in its own process. An engine that drafts can serve several arms, which take turns in it."""

    def __init__(
        self, engines: Mapping[str, Mapping[str, DictConfig]], policy: str, sizes: Mapping[str, Any], folder: Path
    ) -> None:
        """Start all engines. engines: name -> arm -> config. sizes: further arguments of vllm.LLM. Logs go to
        folder/arms."""
        self._folder = folder
        self._engine_of = {arm: engine for engine, arms in engines.items() for arm in arms}
        self._pipes = {}
        for engine, arms in engines.items():
            plain = {arm: OmegaConf.to_container(config, resolve=True) for arm, config in arms.items()}
            log = log_of(engine, folder)
            self._pipes[engine] = spawned(_engine_process, plain, policy, dict(sizes), log)[1]

    def ready(self) -> None:
        """Wait until all engines are built."""
        for engine, pipe in self._pipes.items():
            expect(pipe, "ready", engine, self._folder)

    def roll_out(self, arm: str, work: Work) -> Timed:
        """Do one rollout with an arm. Raises RunFailed if its engine fails."""
        engine = self._engine_of[arm]
        tell(self._pipes[engine], (arm, work.history, work.rollout))
        timed: Timed = expect(self._pipes[engine], "rolled", engine, self._folder)
        timed.row = {"arm": arm, **work.names, **timed.row}
        return timed

    def in_turns(self, works: Iterable[Work]) -> Iterator[tuple[Work, str, Timed]]:
        """Do every rollout with every arm. Yields the work, the arm, and what became of it. Raises RunFailed after a
        work for which arms emitted other tokens than they must."""
        for number, work in enumerate(works):
            done = {}
            for arm in in_turn(list(self._engine_of), number):
                done[arm] = self.roll_out(arm, work)
                yield work, arm, done[arm]
            same = {arm: isinstance(work.rollout, ForcedRollout) or each.row["digest"] for arm, each in done.items()}
            wrong = [arm for arm, each in done.items() if not each.equal or same[arm] != same[BASELINE]]
            if wrong:
                raise RunFailed(
                    f"{', '.join(wrong)}, {work.history}, step {work.names['step']}: other tokens than "
                    f"{BASELINE} or the recording has: python -m das doctor MODEL shows where"
                )

    def close(self) -> None:
        """End all engines."""
        for pipe in self._pipes.values():
            pipe.close()


def in_turn(names: Sequence[str], step: int) -> list[str]:
    """Return the names in the order of a step: another one begins in each."""
    first = step % len(names)
    return [*names[first:], *names[:first]]


def _engine_process(plain: dict[str, Any], policy: str, sizes: dict[str, Any], log: Path, pipe: Connection) -> None:
    """Body of an engine's process: do each (arm, history, rollout) from the pipe, until the pipe closes."""
    with reporting(pipe, log):
        configs = {arm: run_config(OmegaConf.create(each)) for arm, each in plain.items()}
        first = next(iter(configs.values()))
        prepare_process(first)
        from das.engine.build import warm_up

        settings = {arm: engine_settings(config, policy) for arm, config in configs.items()}
        # An engine that is built for self-drafts and for the longest drafts can serve the other arms too.
        longest = max(settings.values(), key=lambda each: longest_draft(each.budget))
        method = next((each.method for each in settings.values() if each.row.self_drafts), longest.method)
        llm = build_in_process(replace(longest, method=method), **sizes).llm
        warm_up(llm)
        pipe.send(("ready", None))
        while True:
            arm, history, asked = pipe.recv()
            row = settings[arm].row
            if row.history or row.proposes:
                options = settings[arm].das_options if row.proposes else None
                llm.collective_rpc("das_use_proposer", args=(f"{history} {arm}", options))
            set_seats(llm, asked.live)
            llm.reset_prefix_cache()
            processor_s, equal = time.process_time(), True
            if isinstance(asked, ForcedRollout):
                rollout = roll_out_forced(llm, asked, first.seed, row.keyed)
                equal = as_recorded(rollout.responses, asked.work, only_lengths=not row.keyed)
            else:
                rollout = roll_out_own(llm, asked, first)
            found = {"processor_s": time.process_time() - processor_s, **rollout_row(rollout)}
            found["digest"] = hashlib.sha256(repr(rollout.responses).encode()).hexdigest()
            pipe.send(("rolled", Timed(found, rollout.report.timeline(), equal)))


def roll_out_own(llm: Any, asked: OwnRollout, config: RunConfig) -> Rollout:
    """Roll out requests whose responses the policy samples."""
    from vllm import SamplingParams

    class LimitedRequest(RolloutRequest):
        def parameters(self) -> list[Any]:
            parameters = super().parameters()
            for params, tokens in zip(parameters, asked.longest, strict=True):
                params.max_tokens = tokens
            return parameters

    request = LimitedRequest(
        asked.prompts,
        SamplingParams(temperature=config.trainer.temperature),
        asked.problems,
        seeds=[request_seed(config.seed, asked.step, i) for i in range(asked.live)],
        step=asked.step,
        next_history_tick=asked.next_history_tick,
    )
    return roll_out(llm, request)[1]
