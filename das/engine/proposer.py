"""What drafts in an engine of das: it gives the engine's tokens to the drafter and returns drafts within the budget."""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from das.budget import BudgetPolicy, DraftWork, LiveRequest, TargetPass, make_budget
from das.budget.acceptance import TokenCalibration
from das.budget.lengths import RemainingLength
from das.draft_round import DraftRound
from das.drafter import make_drafter
from das.drafter.saved import SavedText
from das.engine.engine_config import WORKER, DasOptions, das_options
from das.engine.patches.gpu import rows_of_graphs
from das.engine.rollouts.judge import Judge
from das.engine.rollouts.live_requests import LiveRequests, live_request
from das.engine.rollouts.meter import RolloutMeter
from das.engine.rollouts.report import RequestCost, RolloutReport
from das.engine.rollouts.rollout_record import HistoryClock, RolloutRecord
from das.errors import NotInstalled
from das.models.self_draft import SelfDraft
from das.verify.admission import FORCED_KEY
from das.verify.sampler import GREEDY_BELOW, remembered_of

if TYPE_CHECKING:
    from das.engine.runner.runner import Runner

PLANNED_BY = 4  # the last rounds of a request, by which its rows are planned


@dataclass(slots=True)
class _Emitted:
    """The tokens that a pass, or passes alike, emitted for the requests that the drafter knows. The lists of requests
    are in the same order."""

    ended: Sequence[float]  # when the passes ended, in seconds: one pass, or several alike that verified no drafts
    rows: list[int] = field(default_factory=list)  # the requests' rows in vLLM's batch
    requests: list[LiveRequest] = field(default_factory=list)
    num_drafted: list[int] = field(default_factory=list)
    num_accepted: list[int] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    context: int = 0  # tokens of prompt and response that the requests had before the pass

    def remembered(self, sampler: Any) -> np.ndarray | None:
        """Returns the distributions from which these tokens were sampled, in order; None if the sampler kept none."""
        return remembered_of(sampler.remembered, self.rows, list(map(len, self.tokens)))


class DasProposer:
    """The proposer of the engine with this VllmConfig. options: how to draft; None: the engine's own options.

    The proposer maps vLLM's batch rows to requests, and DraftRound does the drafting. Raises NotInstalled in an engine
    without das's worker.
    """

    def __init__(self, vllm_config: Any, options: DasOptions | None = None):
        if vllm_config.parallel_config.worker_cls != WORKER:
            raise NotInstalled(f'das drafts in its own worker only: add worker_cls="{WORKER}" (--worker-cls)')
        options = das_options(vllm_config) if options is None else options
        budget = make_budget(options.budget)
        # vLLM takes an attribute `model` for a torch module with buffers, which sleep mode saves.
        self.drafting_model = None if options.self_draft is None else SelfDraft(options.self_draft)
        drafter = make_drafter(options.drafter) if self.drafting_model is None else self.drafting_model
        drafter.vocab = vllm_config.model_config.get_vocab_size()
        self.draft_round = DraftRound(
            drafter,
            budget,
            int(vllm_config.speculative_config.num_speculative_tokens),
            rows_of_graphs(vllm_config),
        )
        self.max_model_len = int(vllm_config.model_config.max_model_len)
        self.requests = LiveRequests()
        self._runner: Runner
        self.lengths = RemainingLength(self.max_model_len)
        self.judge = Judge()
        self.calibration = TokenCalibration()
        self._sample: tuple[str, list[float]] = "", []  # one draft of the pass: its request and its probabilities
        self.begin_record()
        self._pending: dict[str, int] = {}  # draft tokens that the running pass verifies, by request
        self._wanted: dict[str, deque[int]] = {}  # tokens that the budget chose in the last rounds, by request
        self._decoding: set[str] = set()  # requests that emitted in the last pass
        self._drafting = DraftWork()  # what a draft model did for these drafts
        self._pass_ended = 0.0
        self.clock = HistoryClock(self.draft_round.drafter.history_tick)
        self._budget_options = options.budget
        self._of_training: BudgetPolicy | None = None  # the training's budget, in an evaluation

    @property
    def remembers(self) -> bool:
        """True if the drafter remembers the distributions from which tokens were sampled."""
        return self.draft_round.drafter.remembers

    def attach(self, runner: "Runner") -> None:
        """Note the runner, before every `propose`: it knows the request ids."""
        self._runner = runner
        if self.drafting_model is not None:
            self.drafting_model.attach(runner)

    def propose(
        self, sampled_token_ids: list[list[int]], lengths: np.ndarray, planned: Mapping[str, int] | None = None
    ) -> list[list[int]]:
        """Draft for every row of the batch, after a target pass. Returns each row's drafted token ids.

        sampled_token_ids: the tokens that each row emitted in the pass; rows without new tokens (unfinished prompts)
        get no draft. lengths: tokens of prompt and response of each row, int [rows]. planned: how many tokens the next
        pass verifies for each request, if that is fixed; drafts are cut and filled up with 0 to be as long, and what
        the budget decides is for the pass behind it (`planned_rows`).
        """
        names: list[str] = self._runner.input_batch.req_ids
        drafts: list[list[int]] = [[] for _ in names]
        emitted = self._observed(names, sampled_token_ids)
        before, self._wanted = self._wanted, {}
        if planned is not None:
            drafts = [[0] * planned[name] for name in names]
            self._pending = {name: count for name, count in planned.items() if count}
        if emitted is None:
            return drafts
        room = (self.max_model_len - 1 - lengths[emitted.rows]).tolist()
        proposal = self.draft_round.propose(emitted.requests, room)
        if self.drafting_model is not None:
            self._drafting = self.drafting_model.handed_out()
            self._runner.meter.record_draft_work(self._drafting)
        if proposal is None:
            return drafts
        counts = proposal.counts
        if any(counts):
            for request, count in zip(emitted.requests, counts, strict=True):
                wanted = self._wanted[request.name] = before.get(request.name, deque(maxlen=PLANNED_BY))
                wanted.append(count)
        self._record.declined |= not any(counts) and bool(proposal.drafts.counts.any())
        if planned is not None:
            most = [planned[request.name] for request in emitted.requests]
            counts = np.minimum(proposal.drafts.counts, most).tolist()
        all_tokens = proposal.drafts.tokens[:, : max(counts)].tolist()
        for i, count in enumerate(counts):
            if count:
                drafts[emitted.rows[i]][:count] = all_tokens[i][:count]
                self._pending.setdefault(emitted.requests[i].name, count)
        i = len(self._record.measured_s) % len(counts)  # one draft per pass suffices to check its probabilities
        self._sample = emitted.requests[i].name, proposal.drafts.probs[i, : counts[i]].tolist()
        return drafts

    def planned_rows(self) -> dict[str, int]:
        """Returns how many drafted tokens of each request to verify in a pass that begins before its drafts are known:
        as many as the budget chose in the last rounds on average, rounded up."""
        return {name: -(-sum(wanted) // len(wanted)) for name, wanted in self._wanted.items()}

    @property
    def rests(self) -> bool:
        """True if nobody will draft for the next pass, whatever the pass before emits."""
        return self.draft_round.budget.rests and self.drafting_model is None

    def rest(self) -> None:
        """Take the place of `propose` before a pass for which nobody drafts; `observe` comes once its tokens are
        known."""
        self._wanted = {}
        self._record.declined = True
        self.draft_round.rest()

    def observe(self, sampled_token_ids: list[list[int]]) -> None:
        """Learn from passes after which nobody drafted, because `rest` was called. sampled_token_ids: see `propose`;
        each row emitted a token in each pass."""
        self._observed(self._runner.input_batch.req_ids, sampled_token_ids)

    def _observed(self, names: list[str], sampled_token_ids: list[list[int]]) -> _Emitted | None:
        """Learn from a pass, or from passes alike. Returns what was emitted; None if no request may draft."""
        running = self._runner.requests
        drafting, self._drafting = self._drafting, DraftWork()
        if not self.requests.num_tracked and self.requests.are_unchanged(names, running):
            self._decoding = set()  # no request may draft, so there is nothing to read or to learn
            return None
        self._end(self.requests.over(running))
        emitted, decoding = self._read_batch(names, sampled_token_ids)
        if not emitted.rows:  # prompts, or requests that never draft: there is nothing to learn from such a pass
            self._decoding, self._pass_ended = decoding, emitted.ended[-1]
            self._pending, self._sample = {}, ("", [])
            return None
        remembered = emitted.remembered(self._runner.sampler) if self.remembers else None
        target_passes = self._watch_passes(names, decoding, emitted, drafting)
        verified = emitted.num_drafted, emitted.num_accepted, emitted.tokens
        self.draft_round.observe(emitted.requests, *verified, target_passes, remembered, len(emitted.ended))
        self._pending, self._sample = {}, ("", [])
        return emitted

    def _read_batch(self, names: list[str], sampled_token_ids: list[list[int]]) -> tuple[_Emitted, set[str]]:
        """Find the request of every row of the batch, and begin the new requests. Returns the tokens of the requests
        that the drafter knows, and the names of all requests that emitted tokens."""
        emitted, decoding = _Emitted(self._runner.passes_ended or (time.perf_counter(),)), set()
        # Names are looked up once: at 256 requests the loop takes a fifth of a millisecond in every pass.
        live, pending, (sampled, probs) = self.requests.live, self._pending, self._sample
        rows, requests, tokens = emitted.rows, emitted.requests, emitted.tokens
        drafted, accepted, context = emitted.num_drafted, emitted.num_accepted, 0
        for row, (name, new) in enumerate(zip(names, sampled_token_ids, strict=True)):
            if not new:
                continue
            decoding.add(name)
            request = live.get(name)
            if request is None:
                request = self._begin(name, self._runner.requests[name], len(new))
            # An asynchronous engine may run a request once more before it notices that it has all its tokens.
            if request.untracked or request.stopped or request.generated >= request.max_tokens:
                continue
            num_drafted = pending.get(name, 0)
            if name == sampled and request.kept:  # probabilities are right or wrong wherever a response ends
                self.calibration.observe(probs, min(len(new) - 1, len(probs)))
            if not request.stop_tokens.isdisjoint(new):
                new = request.cut_at_stop(new)
            # What lies behind the end saves no pass, so budget and judge do not count it.
            num_accepted = len(new) - 1
            if num_accepted > num_drafted:
                num_accepted = num_drafted
            rows.append(row)
            requests.append(request)
            drafted.append(num_drafted)
            accepted.append(num_accepted)
            tokens.append(new)
            context += request.prompt + request.generated
        emitted.context = context
        return emitted, decoding

    def _watch_passes(
        self, names: list[str], decoding: set[str], emitted: _Emitted, drafting: DraftWork
    ) -> list[TargetPass]:
        """Time the passes that just ended, and note what the budget expected of them.

        Returns the decode passes. In a decode pass no request brings a prompt: all of them emitted tokens in the pass
        before, too. decoding: the requests that emitted in these passes. drafting: the draft model's work on the drafts
        that they verified.
        """
        live, decodes = len(names), len(names) > 0 and self._decoding.issuperset(names)
        done, budget, context = [], self.draft_round.budget, emitted.context
        num_drafted, num_accepted = sum(emitted.num_drafted), sum(emitted.num_accepted)
        # The time of a draft model's passes is learned separately, and quantizing comes only once after a sync.
        modelling = drafting.requantize_s + sum(took for _, took in drafting.passes)
        for before, ended in pairwise((self._pass_ended, *emitted.ended)):
            if decodes:
                seconds = ended - before - modelling
                self._record.predicted_s.append(budget.predict(live, num_drafted, context))
                self._record.measured_s.append(seconds)
                done.append(TargetPass(live, num_drafted, num_accepted, context, seconds, drafting.passes))
            decodes = decoding.issuperset(names)
            context += len(emitted.rows)
        self._decoding, self._pass_ended = decoding, emitted.ended[-1]
        return done

    def add_history(self, history_tick: int, texts: Sequence[SavedText]) -> None:
        """Add to the history the responses that other engines finished. history_tick: the window's present tick, which
        a new engine does not know.
        """
        history = self.draft_round.drafter
        if history_tick > history.history_tick:
            history.end_step(history_tick)
            self.clock.told = history_tick
        history.add_history(texts)

    def noted(self, name: str, cost: RequestCost) -> RequestCost:
        """Returns a request's costs in this rollout with what the proposer noted about the request."""
        record = self._record
        remembered = record.remembered.get(name)
        if remembered is None and name in record.seeds and name in self.requests.live:
            remembered = self.draft_round.drafter.remembered(name)
        return replace(
            cost,
            predicted_length=record.predicted_length.get(name),
            distributions=None if remembered is None else remembered.text(),
            seed=None if remembered is None else record.seeds[name],
        )

    def begin_step(self, num_requests: int, evaluation: bool = False) -> None:
        """Note that a rollout of this many requests begins. evaluation: the training must not notice it: its requests
        join no history, and nothing is learned of them."""
        self._end_evaluation()
        if evaluation:
            self._begin_evaluation()
        self._decoding = set()  # the time until the first pass was not decoding
        self.begin_record()
        self._record.announced = True
        self.draft_round.begin_step(num_requests)

    def _begin_evaluation(self) -> None:
        self._of_training, self.draft_round.budget = self.draft_round.budget, make_budget(self._budget_options)
        self.draft_round.drafter.learns = False

    def _end_evaluation(self) -> None:
        if self._of_training is not None:
            self.draft_round.budget, self._of_training = self._of_training, None
            self.draft_round.drafter.learns = True

    def begin_turn(self, num_requests: int) -> None:
        """Note that the running rollout goes on with a turn of this many requests."""
        self._decoding = set()
        self.draft_round.begin_step(num_requests)

    def end_turn(self, meter: RolloutMeter) -> RolloutReport:
        """Note that a turn is over: its requests join the history, and the rollout may go on. meter: the turn's meter.
        Returns the turn's report."""
        start = time.perf_counter()
        self._end(list(self.requests.live))
        report = self._report(meter, start)
        self._record.forget_turn()
        return report

    def begin_record(self) -> None:
        """Start new notes, and forget those of the last rollout."""
        self._record = RolloutRecord()

    def _report(self, meter: RolloutMeter, ended: float) -> RolloutReport:
        """Make the report from the meter, the times of passes, and the budget's traces of its decisions.

        ended: when the rollout or turn ended. The time since then counts as the drafter's.
        """
        meter.draft_s += time.perf_counter() - ended
        return replace(
            meter.report(),
            pass_predicted_s=self._record.predicted_s,
            pass_measured_s=self._record.measured_s,
            traces=self.draft_round.budget.trace(),
        )

    def end_step(self, meter: RolloutMeter, history_tick: int) -> RolloutReport:
        """End the rollout, and return its report. Its requests join the history, and the drafter's window moves to
        `history_tick` (a step or epoch), unless it was an evaluation. meter: the rollout's meter."""
        start = time.perf_counter()
        self._end(list(self.requests.live))
        self._decoding = set()  # the time until the next pass is training, not decoding
        alarms = self._alarms()
        drafter, evaluation = self.draft_round.drafter, self._of_training is not None
        passed = 0 if evaluation else self.clock.announced(history_tick)
        self.draft_round.end_step(drafter.history_tick + passed)
        report = replace(
            self._report(meter, start),
            history_tokens=drafter.history_tokens,
            calibration_error=None if self.drafting_model else self.calibration.error,  # it states no probabilities
            alarms=alarms,
        )
        self._end_evaluation()
        self.begin_record()  # the next rollout's, for callers that never call begin_step
        return report

    def end_unannounced_step(self) -> list[str]:
        """End an unannounced rollout, because the weights are new or because it has gone on for long. (A rollout is
        unannounced if nobody called `begin_step` for it.)

        Requests may still run. The window moves by the number of response tokens, not by steps. Returns the alarms. It
        was no rollout if the drafter knew none of its requests.
        """
        if not self.requests.num_tracked and not self._record.requests:
            return []
        self._decoding = set()
        alarms = self._alarms()
        passed = self.clock.unannounced(self._record.requests, self._record.tokens)
        self.draft_round.end_step(self.draft_round.drafter.history_tick + passed)
        self.begin_record()
        self.draft_round.begin_step(0)  # nobody knows how many requests will come
        return alarms

    def _alarms(self) -> list[str]:
        """Returns the alarms about the rollout that ends. An evaluation is not judged."""
        record = self._record
        alarms = [] if self.drafting_model is None else self.drafting_model.alarms()
        if self._of_training is None:
            alarms += self.judge.lines(record.passes, record.num_drafted, record.num_accepted, record.declined)
        return alarms

    def _begin(self, name: str, state: Any, num_emitted: int) -> LiveRequest:
        """Register a request that emitted for the first time, or that continues after its rollout ended.

        state: the runner's KnownRequest, whose output ends with the `num_emitted` tokens of this pass.
        """
        request = live_request(name, state, self.draft_round.max_draft_tokens, self.max_model_len)
        request.kept = self._of_training is None
        self.requests.begin(request, state)
        if request.untracked:
            return request
        # A preempted request keeps its entry; a request that decoded before brings its text along.
        prompt = state.prompt_token_ids or ()
        seed = self._seed(state.sampling_params) if self.remembers else None
        if self.remembers and self._record.announced:
            self._record.seeds[name] = seed
        self.draft_round.begin(request, prompt, state.output_token_ids[:-num_emitted], seed)
        expected = self.lengths.mean_length(request.problem)
        self._record.predicted_length[name] = min(expected, float(request.max_tokens))
        return request

    def _seed(self, params: Any) -> int | None:
        """The seed of a request's noise; None for greedy requests, which have none, and for recorded responses whose
        noise is unknown."""
        sampler, forced = self._runner.sampler, (params.extra_args or {}).get(FORCED_KEY)
        if params.temperature < GREEDY_BELOW or (forced is not None and not sampler.knows_noise(forced)):
            return None
        seed: int | None = params.seed
        return seed

    def end_over(self) -> None:
        """End the requests that vLLM has no more."""
        if self.requests.live:
            self._end(self.requests.over(self._runner.requests))

    def _end(self, names: Iterable[str]) -> None:
        """End these requests. They join the history, but those of an evaluation."""
        for name in names:
            request = self.requests.end(name)
            if request.untracked:
                continue
            if name in self._record.seeds and (remembered := self.draft_round.drafter.remembered(name)) is not None:
                self._record.remembered[name] = remembered
            self.draft_round.end(request, request.kept)
            if request.kept:
                self.lengths.observe(request.problem, request.generated)
            self._record.finish(request)
