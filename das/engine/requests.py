"""The requests of an engine: one object for each, from arrival to end. vLLM's model runner keeps arrays only."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from das.budget import LiveRequest
from das.drafter.distributions import Distributions
from das.verify.admission import FORCED_KEY, LIMIT_KEY, PROBLEM_KEY, default_problem, features_of
from das.verify.layout import GREEDY_BELOW, Remembered


@dataclass
class Counts:
    """Counts of one request in a rollout so far."""

    passes: int = 0  # target passes that emitted at least one token
    num_drafted: int = 0  # draft tokens verified
    rounds: int = 0  # passes that verified a draft token or more
    first_s: float = 0.0  # when its first token came, in seconds since the rollout began
    last_s: float = 0.0  # when its last token came
    emitted: list[int] = field(default_factory=list)  # tokens that each of these passes emitted
    steps: list[int] = field(default_factory=list)  # the numbers of these passes in the rollout


@dataclass(eq=False)
class Request(LiveRequest):
    """A request from its arrival to its end. What is inherited is what budgets see.

    A request that asks for no drafts and names no problem is untracked: the drafter never hears of it. If vLLM gives an
    id to another request, that is another object.
    """

    params: Any = None  # vLLM's SamplingParams
    prompt_token_ids: Sequence[int] = ()  # empty for a prompt of embeddings
    output_token_ids: list[int] = field(default_factory=list)  # they grow only in engines that draft
    seed: int | None = None  # of its noise; None: it is greedy, or a recorded response whose noise is unknown
    forced: str | None = None  # the recorded response that it emits (das/verify/forced.py)
    is_over: bool = False  # whether vLLM has it no more
    draft: Sequence[int] = ()  # that the next pass verifies, if that is known before
    proposer: Any = None  # the one whose drafter knows it
    emitted_in: int = -1  # the proposer's number of the pass in which it emitted last
    predicted_length: float | None = None  # of its response, in tokens, predicted when it began
    distributions: Distributions | None = None  # of its tokens, once it has ended, if its rollout was announced
    meter: Any = None  # of the rollout to which `counts` belong
    counts: Counts = field(default_factory=Counts)

    @property
    def asked(self) -> str:
        """The id that its caller gave it: inside the engine vLLM appends a random tail."""
        return self.name.rpartition("-")[0] or self.name

    @property
    def is_complete(self) -> bool:
        """Whether the drafter hears no more of it."""
        return self.untracked or self.is_over or self.stopped or self.generated >= self.max_tokens


@dataclass(slots=True)
class Pass:
    """What drafting hears of a pass whose tokens are on the host, or of several alike in which nobody drafted.

    requests: one in each row of vLLM's batch. tokens: that each row emitted; none if its prompt goes on. drafted: how
    many drafted tokens each row verified. ended: when the passes ended, in seconds. distributions: those of the tokens,
    piece by piece; empty if nobody remembers them.
    """

    requests: Sequence[Request]
    tokens: Sequence[list[int]]
    drafted: Sequence[int]
    ended: Sequence[float]
    distributions: Sequence[Remembered] = ()


class Requests:
    """All requests that vLLM's runner knows, by id, also those that are preempted.

    longest_draft: the draft limit of a request that brings none. recorded: the recorded responses whose noise is known.
    """

    def __init__(self, longest_draft: int, max_model_len: int):
        self.known: dict[str, Request] = {}
        self.recorded: Container[str] = ()
        self._longest_draft, self._max_model_len = longest_draft, max_model_len
        self.last: Sequence[Request] = ()  # those of the last pass behind which drafts were made, or none
        self._has_drafts = False  # whether a request has a draft

    def finish(self, scheduled: Any) -> None:
        """Forget finished requests. scheduled: vLLM's SchedulerOutput."""
        for name in scheduled.finished_req_ids:
            if (request := self.known.pop(name, None)) is not None:
                request.is_over = True

    def add(self, scheduled: Any) -> list[Request]:
        """Add the requests that begin. Returns all that vLLM adds: a preempted request that goes on is among them."""
        added = []
        for new in scheduled.scheduled_new_reqs:
            request = self.known.get(new.req_id)
            if request is None:
                request = self.known[new.req_id] = self._arrived(new)
            request.output_token_ids = list(new.prefill_token_ids[new.prompt_len :])
            added.append(request)
        return added

    def _arrived(self, new: Any) -> Request:
        """Returns the request that vLLM's NewRequestData describes."""
        params, prompt = new.sampling_params, new.prompt_token_ids or ()
        extra = params.extra_args or {}
        limit, forced = int(extra.get(LIMIT_KEY, self._longest_draft)), extra.get(FORCED_KEY)
        problem = extra.get(PROBLEM_KEY)
        if problem is None:
            problem = default_problem(prompt, features_of(new)) if prompt else f"request-{new.req_id}"
        has_noise = params.temperature >= GREEDY_BELOW and (forced is None or forced in self.recorded)
        return Request(
            name=new.req_id,
            problem=problem,
            max_tokens=self._max_model_len if params.max_tokens is None else params.max_tokens,
            prompt=new.prompt_len,
            limit=limit,
            untracked=limit <= 0 and PROBLEM_KEY not in extra,
            stop_tokens=stop_tokens(params),
            params=params,
            prompt_token_ids=prompt,
            seed=params.seed if has_noise else None,
            forced=forced,
        )

    def plan(self, requests: Sequence[Request], drafts: Sequence[list[int]]) -> None:
        """Note the drafts of the last pass's requests, which the next pass verifies. []: it verifies none of any."""
        self.last = requests
        for request, draft in zip(requests, drafts, strict=bool(drafts)):
            request.draft = draft
        if not drafts and self._has_drafts:
            for request in self.known.values():
                request.draft = ()
        self._has_drafts = any(drafts) or (self._has_drafts and bool(drafts))

    def shortened(self, scheduled: Any) -> Any:
        """Returns the plan of a pass without the rows that nobody drafted. vLLM plans the longest draft for a new
        request if all but one of its tokens are cached, and with asynchronous scheduling for every request. scheduled:
        vLLM's SchedulerOutput, which stays as it is."""
        planned, num_tokens = scheduled.scheduled_spec_decode_tokens, dict(scheduled.num_scheduled_tokens)
        num_planned = sum(map(len, planned.values()))
        if (
            not self._has_drafts
            and not scheduled.has_structured_output_requests
            and scheduled.total_num_scheduled_tokens - num_planned == len(planned) == len(num_tokens)
        ):  # nobody drafted, and no request has a prompt: a pass at rest, in which this must cost next to nothing
            return replace(
                scheduled,
                num_scheduled_tokens=dict.fromkeys(num_tokens, 1),
                total_num_scheduled_tokens=len(num_tokens),
                scheduled_spec_decode_tokens={},
            )
        begun = {new.req_id: new for new in scheduled.scheduled_new_reqs}  # what they drafted before is gone
        kept = {}
        for name, tokens in planned.items():
            params = begun[name].sampling_params if name in begun else self.known[name].params
            num_drafted = 0 if name in begun else len(self.known[name].draft)
            # The mask of a grammar has a row for each planned token.
            own = tokens if params.structured_outputs is not None else tokens[:num_drafted]
            num_tokens[name] -= len(tokens) - len(own)
            if own:
                kept[name] = own
        return replace(
            scheduled,
            num_scheduled_tokens=num_tokens,
            total_num_scheduled_tokens=sum(num_tokens.values()),
            scheduled_spec_decode_tokens=kept,
        )


def stop_tokens(params: Any) -> frozenset[int]:
    """Returns the tokens that end a response. params: vLLM's SamplingParams."""
    return frozenset((params.stop_token_ids or ()) if params.ignore_eos else params.all_stop_token_ids)
