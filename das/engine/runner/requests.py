"""The requests of vLLM's model runner, which keeps arrays only, as objects."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np


@dataclass(eq=False)
class KnownRequest:
    """A request that the runner knows. output_token_ids grow only in engines that draft."""

    prompt_token_ids: Sequence[int] | None
    num_prompt_tokens: int
    sampling_params: Any
    output_token_ids: list[int]
    mm_features: list[Any]


@dataclass
class Batch:
    """The requests of the running pass, one in each row.

    num_tokens_no_spec: tokens of prompt and response, int64 [requests]; they grow when the pass is sampled.
    """

    req_ids: list[str] = field(default_factory=list)
    num_tokens_no_spec: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    num_prompt_tokens: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    temperature_cpu: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))

    @property
    def num_reqs(self) -> int:
        """The number of requests."""
        return len(self.req_ids)

    @functools.cached_property
    def req_id_to_index(self) -> dict[str, int]:
        """The row of each request."""
        return {name: row for row, name in enumerate(self.req_ids)}


class Requests:
    """All requests that the runner knows, by id, also those that are preempted. If vLLM gives an id to another request,
    it stands for another object."""

    def __init__(self) -> None:
        self.known: dict[str, KnownRequest] = {}
        self.num_drafted: dict[str, int] = {}  # tokens that were drafted for the next pass

    def finish(self, scheduled: Any) -> None:
        """Forget finished requests. scheduled: vLLM's SchedulerOutput."""
        for name in scheduled.finished_req_ids:
            self.known.pop(name, None)
            self.num_drafted.pop(name, None)

    def add(self, scheduled: Any) -> list[str]:
        """Add the requests that begin. Returns the ids of all that vLLM adds: a preempted request that goes on is among
        them."""
        for new in scheduled.scheduled_new_reqs:
            known = self.known.get(new.req_id)
            if known is None:
                known = KnownRequest(new.prompt_token_ids, new.prompt_len, new.sampling_params, [], new.mm_features)
                self.known[new.req_id] = known
            known.output_token_ids = list(new.prefill_token_ids[new.prompt_len :])
        return [new.req_id for new in scheduled.scheduled_new_reqs]

    def shortened(self, scheduled: Any) -> Any:
        """Returns the plan of a pass without the rows that nobody drafted. vLLM plans the longest draft for a new
        request if all but one of its tokens are cached, and with asynchronous scheduling for every request. scheduled:
        vLLM's SchedulerOutput, which stays as it is."""
        planned, num_tokens = scheduled.scheduled_spec_decode_tokens, dict(scheduled.num_scheduled_tokens)
        num_planned = sum(map(len, planned.values()))
        if (
            not self.num_drafted
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
            request = begun.get(name) or self.known[name]
            num_drafted = 0 if name in begun else self.num_drafted.get(name, 0)
            # The mask of a grammar has a row for each planned token.
            own = tokens if request.sampling_params.structured_outputs is not None else tokens[:num_drafted]
            num_tokens[name] -= len(tokens) - len(own)
            if own:
                kept[name] = own
        return replace(
            scheduled,
            num_scheduled_tokens=num_tokens,
            total_num_scheduled_tokens=sum(num_tokens.values()),
            scheduled_spec_decode_tokens=kept,
        )
