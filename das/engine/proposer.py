"""DasProposer answers a pass with drafts for the next one: it feeds drafter and budget, and times passes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from das.budget import BudgetPolicy, DraftWork, TargetPass, make_budget
from das.budget.lengths import RemainingLength
from das.budget.policies import count_emitted
from das.draft_round import DraftRound, Proposal, RowsAhead
from das.drafter import HistoryDrafter, make_drafter
from das.drafter.saved import SavedText
from das.drafter.thread import Arriving, Late
from das.engine.patches.gpu import rows_of_graphs
from das.engine.requests import Pass, Request
from das.engine.rollouts.judge import Judge, TokenCalibration
from das.engine.settings import WORKER, DasOptions, das_options
from das.general.errors import NotInstalled
from das.models.draft_passes import DraftPasses
from das.models.self_draft import QuantizedLayers, SelfDraft
from das.verify.layout import remembered_of


@dataclass(slots=True)
class _Emitted:
    """The tokens that a pass emitted for the requests that the drafter knows. The lists are in the same order."""

    rows: list[int] = field(default_factory=list)  # the requests' rows in vLLM's batch
    requests: list[Request] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    num_drafted: int = 0
    num_accepted: int = 0
    context: int = 0  # tokens of prompt and response that the requests had before the pass
    decodes: bool = True  # whether all requests of the batch, also the others, emitted in the pass before, too
    repeats: bool = True  # whether all of them emitted in this one


@dataclass
class Record:
    """Expected and measured times of passes, and what drafting did."""

    announced: bool = False  # whether somebody will ask for the requests' costs
    declined: bool = False  # whether there was a pass for which the budget let nobody draft
    predicted_s: list[float] = field(default_factory=list)  # seconds that the budget expected of each decode pass
    measured_s: list[float] = field(default_factory=list)  # seconds that the pass took
    works: list[DraftWork] = field(default_factory=list)  # of a draft model, by round

    def of_draft_model(self) -> dict[str, Any]:
        """Returns the work of a draft model, as fields of a RolloutReport."""
        passes = [each for work in self.works for each in work.passes]
        return {
            "draft_passes": len(passes),
            "draft_rows": sum(rows for rows, _ in passes),
            "draft_pass_s": sum(seconds for _, seconds in passes),
            "requantize_s": sum(work.requantize_s for work in self.works),
        }

    def forget_turn(self) -> None:
        """Forget what belongs to the passes so far, because the next turn has a report of its own."""
        self.predicted_s, self.measured_s, self.works = [], [], []


class DasProposer:
    """The proposer of the engine with this VllmConfig. options: how to draft; None: the engine's own options.
    passes_of: makes what self-drafts in a format run on (Runner.self_drafts).

    DraftRound does the drafting. The proposer tells it of requests that begin and end, and of passes, and keeps the
    record of the rollout. Raises NotInstalled in an engine without das's worker.
    """

    def __init__(
        self,
        vllm_config: Any,
        options: DasOptions | None = None,
        passes_of: Callable[[str], tuple[DraftPasses, QuantizedLayers]] | None = None,
    ):
        if vllm_config.parallel_config.worker_cls != WORKER:
            raise NotInstalled(f'das drafts in its own worker only: add worker_cls="{WORKER}" (--worker-cls)')
        options = das_options(vllm_config) if options is None else options
        budget = make_budget(options.budget)
        # vLLM takes an attribute `model` for a torch module with buffers, which sleep mode saves.
        self.drafting_model = None
        if options.self_draft is not None:
            assert passes_of is not None
            self.drafting_model = SelfDraft(options.self_draft, passes_of)
        drafter = make_drafter(options.drafter) if self.drafting_model is None else self.drafting_model
        drafter.vocab = vllm_config.model_config.get_vocab_size()
        self.draft_round = DraftRound(
            drafter,
            budget,
            int(vllm_config.speculative_config.num_speculative_tokens),
            rows_of_graphs(vllm_config),
        )
        self._ahead = RowsAhead(vllm_config.compilation_config.cudagraph_capture_sizes or ())
        self.max_model_len = int(vllm_config.model_config.max_model_len)
        self.live: list[Request] = []  # that the drafter knows: they have emitted a token, and have not ended
        self.lengths = RemainingLength(self.max_model_len)
        self.judge = Judge()
        self.calibration = TokenCalibration()
        self._sample: tuple[Request | None, list[float]] = None, []  # one draft of the pass, and its probabilities
        self.record = Record()
        self._pass = 0  # the number of the pass that is read
        self._drafting = DraftWork()  # what a draft model did for these drafts
        self._pass_ended = 0.0
        self._budget_options = options.budget
        self._of_training: BudgetPolicy | None = None  # the training's budget, in an evaluation

    @property
    def remembers(self) -> bool:
        """True if the drafter remembers the distributions from which tokens were sampled."""
        return self.draft_round.drafter.remembers

    def propose(self, done: Pass) -> list[list[int]]:
        """Draft for every row of the batch, after a target pass. Returns each row's drafted token ids.

        Rows without new tokens (unfinished prompts) get no draft.
        """
        drafts: list[list[int]] = [[]] * len(done.requests)
        rows, proposal = self._proposed(done)
        if proposal is not None:
            all_tokens = proposal.drafts.tokens[:, : max(proposal.counts)].tolist()
            for row, count, tokens in zip(rows, proposal.counts, all_tokens, strict=True):
                if count:
                    drafts[row] = tokens[:count]
        return drafts

    def propose_late(self, done: Pass, number: int, late: Late) -> None:
        """Draft for a pass that was planned before. What the budget decides is for the pass behind it (RowsAhead).
        number: of the pass that is done. late: where the drafts go, unless the drafter's thread wrote them there."""
        rows, proposal = self._proposed(done)
        late.write(number, rows, None if proposal is None else proposal.drafts)

    def _proposed(self, done: Pass) -> tuple[list[int], Proposal | None]:
        """Learn from a pass, and draft. Returns the rows of the batch that may draft, and the proposal for them."""
        emitted, proposal = self.observe(done), None
        if emitted is not None:
            last = self.max_model_len - 1
            room = [last - request.prompt - request.generated for request in emitted.requests]
            if self.drafting_model is not None:
                self.drafting_model.requests = emitted.requests
            proposal = self.draft_round.propose(emitted.requests, room)
            self.record.declined |= self.draft_round.declined
            if self.drafting_model is not None:
                self._drafting = self.drafting_model.handed_out()
                self.record.works.append(self._drafting)
        if emitted is None or proposal is None:
            self._ahead.note(1, 0)
            return [], None
        counts, drafts = proposal.counts, proposal.drafts
        self._ahead.note(len(counts), sum(counts))
        i = len(self.record.measured_s) % len(counts)  # one draft per pass suffices to check its probabilities
        self._sample = emitted.requests[i], drafts.probs[i, : drafts.counts[i]].tolist()
        return emitted.rows, proposal

    def draft_ahead(self, requests: Sequence[Request], arriving: Arriving) -> None:
        """Let the drafter's thread draft for the pass behind the running one, of these requests, if the budget chose
        tokens in the last round. Not if one of them begins in this pass."""
        drafter, last = self.draft_round.drafter, self.max_model_len - 1
        if type(drafter) is not HistoryDrafter or self.rests or not self._ahead.is_planned:
            return
        live = [(row, request) for row, request in enumerate(requests) if not request.is_complete]
        if not live or any(request.proposer is not self for request in requests):
            return
        asked = [
            (r.name, row, min(r.max_tokens - 1, last - r.prompt) - r.generated, min(r.limit, r.allowed), r.stop_tokens)
            for row, r in live
        ]
        floors = self.draft_round.budget.floors([request for _, request in live])
        drafter.draft_ahead(asked, self.draft_round.max_draft_tokens, arriving, floors)

    def rows_ahead(self, live: int) -> int:
        """Returns how many drafted tokens of so many requests to verify in a pass that begins before its drafts are
        known."""
        return self._ahead.of(live, self.draft_round.room(live))

    @property
    def rests(self) -> bool:
        """True if nobody will draft for the next pass, whatever the pass before emits."""
        return self.draft_round.budget.rests and self.drafting_model is None

    def rest(self) -> None:
        """Take the place of `propose` before a pass for which nobody drafts; `observe` comes once its tokens are
        known."""
        self._ahead.note(1, 0)
        self.record.declined = True
        self.draft_round.budget.limits(())  # for nobody

    def observe(self, done: Pass) -> _Emitted | None:
        """Learn from a pass, or from passes alike after which nobody drafted, because `rest` was called. Returns what
        was emitted; None if no request may draft."""
        drafting, self._drafting = self._drafting, DraftWork()
        if not self.live and all(request.proposer is self for request in done.requests):
            self._pass += 2  # no request may draft, so there is nothing to read or to learn
            return None
        self.end_over()
        emitted = self._read_batch(done)
        self._sample = None, []
        if not emitted.rows:  # prompts, or requests that never draft: there is nothing to learn from such a pass
            self._pass_ended = done.ended[-1]
            return None
        remembered = None
        if self.remembers:
            remembered = remembered_of(done.distributions, emitted.rows, list(map(len, emitted.tokens)))
        target_passes = self._watch_passes(done, emitted, drafting)
        self.draft_round.observe(emitted.requests, emitted.tokens, target_passes, remembered)
        return emitted

    def _read_batch(self, done: Pass) -> _Emitted:
        """Begin the requests that are new, and count what the others emitted. Returns the tokens of those that the
        drafter knows."""
        emitted, before = _Emitted(), self._pass
        now = self._pass = before + 1
        # Names are looked up once: at 256 requests the loop takes a fifth of a millisecond in every pass.
        rows, requests, tokens, (sampled, probs) = emitted.rows, emitted.requests, emitted.tokens, self._sample
        verified, context = list[int](), 0
        decodes, repeats, passes = len(done.requests) > 0, True, len(done.ended)
        for row, (request, new, drafted) in enumerate(zip(done.requests, done.tokens, done.drafted, strict=True)):
            decodes &= request.emitted_in == before
            if not new:
                repeats = False
                continue
            request.emitted_in = now
            if request.proposer is not self:
                self._begin(request, len(new))
            # An asynchronous engine may run a request once more before it notices that it has all its tokens. (This is
            # `is_complete` without a call for each request.)
            if request.untracked or request.stopped or request.generated >= request.max_tokens:
                continue
            if request is sampled and request.kept:  # probabilities are right or wrong wherever a response ends
                self.calibration.observe(probs[:drafted], min(len(new) - 1, len(probs)))
            if not request.stop_tokens.isdisjoint(new):
                new = request.cut_at_stop(new)
            context += request.prompt + request.generated
            rows.append(row)
            requests.append(request)
            tokens.append(new)
            verified.append(drafted)
        # What lies behind the end saves no pass, so budget and judge do not count it.
        emitted.num_accepted = count_emitted(requests, tokens, verified, passes)
        emitted.num_drafted, emitted.context = sum(verified), context
        emitted.decodes, emitted.repeats = decodes, repeats
        return emitted

    def _watch_passes(self, done: Pass, emitted: _Emitted, drafting: DraftWork) -> list[TargetPass]:
        """Time the passes that just ended, and note what the budget expected of them.

        Returns the decode passes. In a decode pass no request brings a prompt: all of them emitted tokens in the pass
        before, too. drafting: the draft model's work on the drafts that they verified.
        """
        live, decodes, context = len(done.requests), emitted.decodes, emitted.context
        target_passes, budget = [], self.draft_round.budget
        # The time of a draft model's passes is learned separately, and quantizing comes only once after a sync.
        modelling = drafting.requantize_s + sum(took for _, took in drafting.passes)
        counts = emitted.num_drafted, emitted.num_accepted
        for before, ended in pairwise((self._pass_ended, *done.ended)):
            if decodes:
                seconds = ended - before - modelling
                self.record.predicted_s.append(budget.predict(live, emitted.num_drafted, context))
                self.record.measured_s.append(seconds)
                target_passes.append(TargetPass(live, *counts, context, seconds, drafting.passes))
            decodes = emitted.repeats
            context += len(emitted.rows)
        self._pass_ended = done.ended[-1]
        return target_passes

    def add_history(self, history_tick: int, texts: Sequence[SavedText]) -> None:
        """Add to the history the responses that other engines finished. history_tick: the window's present tick, which
        a new engine does not know.
        """
        history = self.draft_round.drafter
        if history_tick > history.history_tick:
            history.end_rollout(history_tick)
        history.add_history(texts)

    def noted(self, request: Request) -> dict[str, Any]:
        """Returns what the proposer noted about a request in this rollout, as fields of Finished."""
        known = request.distributions
        if known is None and self.remembers and self.record.announced and request in self.live:
            known = self.draft_round.drafter.remembered(request.name)
        return {
            "predicted_length": request.predicted_length,
            "distributions": None if known is None else known.text(),
            "seed": None if known is None else request.seed,
        }

    # ---- a rollout: das/engine/running.py calls these ----

    def begin_rollout(self, num_requests: int) -> None:
        """Note that an announced rollout of this many requests begins."""
        self.record = Record(announced=True)
        self.begin_turn(num_requests)

    def begin_turn(self, num_requests: int) -> None:
        """Note that the rollout goes on with a turn of this many requests."""
        self._pass += 2  # the time until the first pass was not decoding
        self.draft_round.budget.begin_step(num_requests)

    def begin_evaluation(self) -> None:
        """Let nothing be learned, until `end_evaluation`: the requests that begin now will join no history."""
        self._of_training, self.draft_round.budget = self.draft_round.budget, make_budget(self._budget_options)
        self.draft_round.drafter.learns = False

    def end_evaluation(self) -> None:
        """End an evaluation, if there is one."""
        if self._of_training is not None:
            self.draft_round.budget, self._of_training = self._of_training, None
            self.draft_round.drafter.learns = True

    def end_live(self) -> None:
        """End all requests, because their rollout or turn is over."""
        self._end(self.live)

    def reported(self) -> dict[str, Any]:
        """Returns times and decisions of the rollout or turn, as fields of a RolloutReport."""
        return {
            **self.record.of_draft_model(),
            "pass_predicted_s": self.record.predicted_s,
            "pass_measured_s": self.record.measured_s,
            "traces": self.draft_round.budget.trace(),
        }

    def end_rollout(self) -> None:
        """Note that a rollout is over, whose drafter has moved its window. Requests that still run go on in the next
        one."""
        self._pass += 2  # the time until the next pass is training, not decoding
        self.draft_round.budget.end_step()
        self.record = Record()  # the next rollout's, for callers that never announce one

    def _begin(self, request: Request, num_emitted: int) -> None:
        """Begin a request that emitted for the first time, or that continues after its rollout ended.

        Its output ends with the `num_emitted` tokens of this pass.
        """
        request.proposer, request.kept = self, self._of_training is None
        if request.untracked:
            return
        self.live.append(request)
        # A preempted request keeps its entry; a request that decoded before brings its text along.
        request.generated = request.num_drafted = request.num_accepted = 0
        request.distributions = None
        seed = request.seed if self.remembers else None
        self.draft_round.begin(request, request.prompt_token_ids, request.output_token_ids[:-num_emitted], seed)
        request.predicted_length = min(self.lengths.mean_length(request.problem), float(request.max_tokens))

    def end_over(self) -> None:
        """End the requests that vLLM has no more."""
        if over := [request for request in self.live if request.is_over]:  # a generator would run as often as requests
            self._end(over)

    def _end(self, requests: Sequence[Request]) -> None:
        """End these requests. They join the history, but those of an evaluation."""
        for request in requests:
            request.proposer = None
            if self.remembers and self.record.announced:
                request.distributions = self.draft_round.drafter.remembered(request.name)
            self.draft_round.end(request, request.kept)
            if request.kept:
                self.lengths.observe(request.problem, request.generated)
        self.live = [request for request in self.live if request.proposer is self]
