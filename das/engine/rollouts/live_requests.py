"""Converts vLLM's requests into LiveRequests, the form that drafter and budget take."""

from collections.abc import Mapping, Sequence
from typing import Any

from das.budget import LiveRequest
from das.engine.rollouts.meter import stop_tokens
from das.verify.admission import LIMIT_KEY, PROBLEM_KEY
from das.verify.seeds import default_problem, features_of


def live_request(name: str, state: Any, longest_draft: int, max_model_len: int) -> LiveRequest:
    """Read a request from `state`, the runner's KnownRequest. longest_draft: its draft limit if it brings none.

    A request that asks for no drafts and names no problem is untracked: the drafter never hears of it.
    """
    params = state.sampling_params
    extra = params.extra_args or {}
    limit = int(extra.get(LIMIT_KEY, longest_draft))
    prompt: Sequence[int] = state.prompt_token_ids or ()
    # A prompt of embeddings has no token ids.
    problem = default_problem(prompt, features_of(state)) if prompt else f"request-{name}"
    problem = extra.get(PROBLEM_KEY, problem)
    return LiveRequest(
        name=name,
        problem=problem,
        prompt=len(prompt) if prompt else int(state.num_prompt_tokens),
        limit=limit,
        untracked=limit <= 0 and PROBLEM_KEY not in extra,
        max_tokens=params.max_tokens if params.max_tokens is not None else max_model_len,
        stop_tokens=stop_tokens(params),
    )


class LiveRequests:
    """The requests that have emitted a token and have not ended. live: these requests, by vLLM's id. num_tracked: how
    many of them the drafter knows.

    vLLM may give an id to another request. To notice that the one that had it has ended, the runner's object is kept
    beside each request.
    """

    def __init__(self) -> None:
        self.live: dict[str, LiveRequest] = {}
        self.num_tracked = 0
        self._states: dict[str, Any] = {}  # each one's KnownRequest

    def begin(self, request: LiveRequest, state: Any) -> None:
        """Add a request that emits for the first time. state: the runner's KnownRequest."""
        self.live[request.name] = request
        self._states[request.name] = state
        self.num_tracked += not request.untracked

    def end(self, name: str) -> LiveRequest:
        """Forget a request, and return it."""
        del self._states[name]
        request = self.live.pop(name)
        self.num_tracked -= not request.untracked
        return request

    def are_unchanged(self, names: Sequence[str], running: Mapping[str, Any]) -> bool:
        """Returns whether each of these ids still belongs to the same live request as before. running: the runner's
        requests, by id."""
        return all(running[name] is self._states.get(name) for name in names)

    def over(self, running: Mapping[str, Any]) -> list[str]:
        """Returns the ids of live requests that have ended: vLLM no longer has them, or uses the id for another
        request. running: the runner's present requests, by id."""
        return [name for name in self.live if running.get(name) is not self._states[name]]
