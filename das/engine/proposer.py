"""vLLM's custom proposer class: the engine's tokens to the drafter, its drafts, within budget, to the engine."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from das.budget import BudgetPolicy, LiveRequest, TargetPass, make_budget
from das.budget.acceptance import TokenCalibration
from das.budget.remaining import RemainingLength
from das.drafter import HistoryDrafter
from das.engine import patches
from das.engine.alarm import Alarm
from das.trajectory import load_arrays, save_arrays

# Keys of SamplingParams.extra_args: the request's problem id, and the most tokens a draft of it may have (0: none).
PROBLEM_KEY = "das_problem"
LIMIT_KEY = "das_limit"
HISTORY, LEARNED = "history.npz", "learned.npz"  # files of a checkpoint


class DasProposer:
    """Built by vLLM with its VllmConfig; `additional_config["das"]` holds the `drafter` and `budget` settings, unless
    others are given."""

    def __init__(self, vllm_config: Any, settings: Mapping[str, Any] | None = None):
        patches.require_applied()
        settings = settings or vllm_config.additional_config["das"]
        self.drafter = HistoryDrafter(**settings["drafter"])
        self.budget: BudgetPolicy = make_budget(settings["budget"])
        self.max_draft_tokens = int(vllm_config.speculative_config.num_speculative_tokens)
        self.max_model_len = int(vllm_config.model_config.max_model_len)
        self.live: dict[str, LiveRequest] = {}
        self._runner: Any = None
        self.lengths = RemainingLength(self.max_model_len)
        self.alarm = Alarm()
        self.calibration = TokenCalibration()
        self._sample: tuple[str, list[float]] = "", []  # one draft of the pass: whose, and its probabilities
        self._clear_counts()
        self._pending: dict[str, int] = {}  # draft tokens that the running pass verifies, by request
        self._decoding: set[str] = set()  # requests that emitted in the last pass
        self._pass_ended = 0.0

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to load: the drafter is an index, not a network."""

    def attach(self, runner: Any) -> None:
        """Called before every `propose`: the runner knows the request ids that vLLM does not pass on."""
        self._runner = runner

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: np.ndarray,
        token_ids_cpu: np.ndarray,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Draft for every row of the batch. Rows without new tokens (unfinished prompts) get no draft."""
        requests = self._runner.requests
        self._end(request for request in self.live if request not in requests)
        names: list[str] = self._runner.input_batch.req_ids
        rows, fresh, tokens = [], [], []
        emitting: set[str] = set()
        drafted = accepted = context = 0
        for row, (name, new) in enumerate(zip(names, sampled_token_ids, strict=True)):
            if not new:
                continue
            emitting.add(name)
            live = self.live.get(name)
            if live is None:
                live = self._begin(name, requests[name])
            if live.untracked:
                continue
            pending = self._pending.get(name, 0)
            right = min(len(new) - 1, pending)
            if name == self._sample[0]:
                self.calibration.observe(self._sample[1], right)
            context += live.prompt + live.generated
            drafted += pending
            accepted += right
            live.num_drafted += pending
            live.num_accepted += right
            live.passes += 1
            new = live.cut_at_stop(new)
            live.generated += len(new)
            rows.append(row)
            fresh.append(live)
            tokens.append(new)
        self._watch_pass(names, emitting, drafted, accepted, context)
        self._pending = {}
        self._sample = "", []
        drafts: list[list[int]] = [[] for _ in names]
        if not rows:  # prompts, or requests that never draft
            return drafts
        self.drafter.observe_batch([live.name for live in fresh], tokens)
        room = [
            min(
                self.max_draft_tokens,
                live.limit,
                live.max_tokens - live.generated - 1,
                self.max_model_len - int(num_tokens_no_spec[row]) - 1,
            )
            for row, live in zip(rows, fresh, strict=True)
        ]
        limits = [max(0, min(free, asked)) for free, asked in zip(room, self.budget.limits(fresh), strict=True)]
        if any(limits):
            asking = [live.name for live in fresh]
            proposed = self.drafter.propose_batch(asking, limits, self.budget.floors(fresh))
            kept = self.budget.trim(fresh, proposed)
            for i, count in enumerate(kept):
                if count:
                    drafts[rows[i]] = proposed.tokens[i, :count].tolist()
                    self._pending[fresh[i].name] = count
            i = len(self._measured_s) % len(kept)  # one draft a pass is enough to see whether probabilities hold
            self._sample = fresh[i].name, proposed.probs[i, : kept[i]].tolist()
        return drafts

    def _watch_pass(self, names: list[str], emitting: set[str], drafted: int, accepted: int, context: int) -> None:
        """Tell the budget what the pass that just ended cost. In a decode pass all had emitted in the one before: none
        brings a prompt."""
        now = time.perf_counter()
        live = len(names)
        if live and self._decoding.issuperset(names):
            seconds = now - self._pass_ended
            self._predicted_s.append(self.budget.predict(live, drafted, context))
            self._measured_s.append(seconds)
            self.budget.observe_pass(TargetPass(live, drafted, accepted, context, seconds))
        self._decoding, self._pass_ended = emitting, now

    def begin_step(self, requests: int) -> None:
        """A rollout of this many requests begins."""
        self._decoding = set()  # the time until the first pass was not decoding
        self._clear_counts()
        self.budget.begin_step(requests)

    def _clear_counts(self) -> None:
        """Of the rollout: what was expected of passes and lengths, and what the alarm compares."""
        self._predicted_s: list[float] = []
        self._measured_s: list[float] = []
        self._predicted_length: dict[str, float] = {}
        self._passes = self._drafted = self._accepted = self._kept_tokens = 0
        self._history_before = self.drafter.history_tokens

    def end_step(self, clock: int, judged: bool = True) -> dict[str, Any]:
        """The rollout is over: requests join the history, the window moves to `clock` (a step or an epoch number)."""
        self._end(list(self.live))
        self._decoding = set()  # the time until the next pass is training, not decoding
        lost = self._history_before + self._kept_tokens - self.drafter.history_tokens if self.drafter.window else 0
        alarms = self.alarm.end_step(self._passes, self._drafted, self._accepted, lost, judged)
        self.drafter.end_step(clock)
        self.budget.end_step()
        report = {
            "history_tokens": self.drafter.history_tokens,
            "alarms": alarms,
            "calibration_error": self.calibration.error,
            "predicted_length": self._predicted_length,
            "pass_predicted_s": self._predicted_s,
            "pass_measured_s": self._measured_s,
        }
        self._clear_counts()  # for those who only ever end rollouts
        return report

    def save(self, folder: Path) -> None:
        """Write history, drafting weights and what was learned of lengths and probabilities; no request may live.

        Draft on from what was written, too: an index built text by text finds occurrences in another order than one
        that grew token by token, and this run shall draft what a resumed one does. Budgets are not saved: they learn
        the times of the engine that runs, within a few passes.
        """
        self.drafter.save(folder / HISTORY)
        self.drafter.load(folder / HISTORY)
        learned = {**self.lengths.state(), "calibration": self.calibration.counts, "usual": np.array(self.alarm.usual)}
        save_arrays(folder / LEARNED, {"kind": np.array(LEARNED), **learned})

    def load(self, folder: Path) -> None:
        """Go on where `save` was called, at the same clock. Raises ValueError for files of another kind."""
        self.drafter.load(folder / HISTORY)
        learned = load_arrays(folder / LEARNED, LEARNED)
        self.lengths.restore(learned)
        self.calibration.counts = learned["calibration"]
        self.alarm.usual.extend((accepted, share) for accepted, share in learned["usual"].reshape(-1, 2).tolist())
        self._clear_counts()

    def _begin(self, name: str, state: Any) -> LiveRequest:
        params = state.sampling_params
        extra = params.extra_args or {}
        limit = int(extra.get(LIMIT_KEY, self.max_draft_tokens))
        # Without a problem id a request is its own problem: it drafts from its own text alone.
        live = LiveRequest(
            name=name,
            problem=str(extra.get(PROBLEM_KEY, name)),
            prompt=len(state.prompt_token_ids),
            limit=limit,
            untracked=limit <= 0 and PROBLEM_KEY not in extra,
            max_tokens=params.max_tokens if params.max_tokens is not None else self.max_model_len,
            stop_tokens=frozenset((params.stop_token_ids or ()) if params.ignore_eos else params.all_stop_token_ids),
        )
        self.live[name] = live
        if live.untracked:
            return live
        self.drafter.begin(name, live.problem, state.prompt_token_ids)
        self.budget.begin(live)
        if live.problem != name:
            self.alarm.begin(live.problem, state.prompt_token_ids)
            self._predicted_length[name] = min(self.lengths.estimate(live.problem, 0).mean, float(live.max_tokens))
        # A preempted request keeps its entry; one that comes from elsewhere brings the text it has.
        earlier = state.output_token_ids[:-1] if len(state.output_token_ids) > 1 else []
        if earlier:
            self.drafter.observe(name, earlier)
            live.generated = len(earlier)
        return live

    def _end(self, names: Any) -> None:
        for name in list(names):
            live = self.live.pop(name)
            if live.untracked:
                continue
            # What came without a problem id (weight checks, other users' requests) leaves no history.
            keep = live.problem != name
            self.drafter.end(name, keep=keep)
            if keep:
                self.budget.end(live)
                self.lengths.observe(live.problem, live.generated)
                self._kept_tokens += live.generated
                self._passes += live.passes
                self._drafted += live.num_drafted
                self._accepted += live.num_accepted
