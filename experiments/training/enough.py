"""Roll out until enough groups are done, or up to a limit of tokens, and put the others aside.

Which groups these are depends on the number of tokens that each group needed, never on passes or on the clock. A
rollout with drafts and one without thus choose the same groups, although drafts let some requests run ahead of others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from das.engine.rollouts.rollout import PUT_ASIDE


@dataclass(frozen=True)
class EnoughGroups:
    """Chooses the `wanted` groups that need the fewest tokens. Request i belongs to group i // siblings.

    progress: for each group, the tokens that each of its responses was granted in earlier steps. A group needs as many
    tokens as its longest response has beyond these. Of groups that need equally many, the first is chosen. tokens: 0,
    or a limit: groups that need more are not chosen. Their number is then rounded down to a multiple of `multiple`,
    which divides `wanted`. If not even so many need at most `tokens`, the best `multiple` groups are chosen.
    """

    wanted: int
    siblings: int
    progress: Sequence[int]
    tokens: int = 0
    multiple: int = 1

    def done(self, lengths: Sequence[int], ended: Sequence[bool]) -> list[int]:
        """Returns the groups to choose of those that are done, the best first: fewer than `wanted` if fewer are done,
        or if the others need more than the limit.

        lengths: the tokens of each request so far. ended: whether its response is complete.
        """
        done = self._best(lengths, ended)
        if not self.tokens:
            return done
        within = sum(self.needs(group, lengths) <= self.tokens for group in done)
        return done[: max(within // self.multiple, 1) * self.multiple]

    def granted(self, chosen: Sequence[int], lengths: Sequence[int]) -> int:
        """Returns the tokens that a step grants to each response, if it trains on these groups (`done`)."""
        last = self.needs(chosen[-1], lengths)
        return last if len(chosen) == self.wanted else max(last, self.tokens)

    def needs(self, group: int, lengths: Sequence[int]) -> int:
        """Returns the tokens that a group with responses of these lengths needs beyond its progress."""
        return max(0, max(lengths[self._requests(group)]) - self.progress[group])

    def too_late(self, lengths: Sequence[int], ended: Sequence[bool]) -> list[int]:
        """Returns the requests that run, and whose groups cannot be chosen any more, however soon they end."""
        done = self._best(lengths, ended)
        bounds = [self._rank(done[-1], lengths)] if len(done) == self.wanted else []
        if self.tokens and len(done) >= self.multiple:
            bounds.append(max(self._rank(done[self.multiple - 1], lengths), (self.tokens, len(self.progress))))
        if not bounds:
            return []
        worst = min(bounds)
        at_least = [length + (not over) for length, over in zip(lengths, ended, strict=True)]
        late = {group for group in range(len(self.progress)) if self._rank(group, at_least) > worst}
        return [request for request, over in enumerate(ended) if not over and request // self.siblings in late]

    def _best(self, lengths: Sequence[int], ended: Sequence[bool]) -> list[int]:
        done = [group for group in range(len(self.progress)) if all(ended[self._requests(group)])]
        return sorted(done, key=lambda group: self._rank(group, lengths))[: self.wanted]

    def _rank(self, group: int, lengths: Sequence[int]) -> tuple[int, int]:
        return self.needs(group, lengths), group

    def _requests(self, group: int) -> slice:
        return slice(group * self.siblings, (group + 1) * self.siblings)


def generate_enough(llm: Any, prompts: Sequence[Any], parameters: Sequence[Any], enough: EnoughGroups) -> list[Any]:
    """Generate as vLLM's llm.generate does, but only until enough groups are done.

    Returns an output for each prompt, in order. Responses that did not end have the finish reason PUT_ASIDE and the
    tokens that they have so far.
    """
    engine = llm.llm_engine
    names = [str(next(llm.request_counter)) for _ in prompts]
    for name, prompt, own in zip(names, prompts, parameters, strict=True):
        engine.add_request(name, prompt, own)
    places = {name: place for place, name in enumerate(names)}
    outputs: list[Any] = [None] * len(names)
    lengths, ended = [0] * len(names), [False] * len(names)
    running = set(places.values())
    while running:
        for output in engine.step():
            place = places[output.request_id]
            outputs[place], lengths[place] = output, len(output.outputs[0].token_ids)
            ended[place] = output.finished
        late = {place for place in enough.too_late(lengths, ended) if lengths[place]} & running
        if late:
            engine.abort_request([names[place] for place in late])
        for place in late:
            outputs[place].outputs[0].finish_reason = PUT_ASIDE
        running = {place for place in running - late if not ended[place]}
    return outputs
