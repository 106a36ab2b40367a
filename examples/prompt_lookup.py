"""A drafter of your own, run in vLLM beside no drafts at all: python examples/prompt_lookup.py MODEL

MODEL: a directory or a hub id. The drafter looks for the last two tokens in the request's own text, and drafts what
followed them there.
"""

import sys
from collections.abc import Sequence

import numpy as np

from das.drafter import Draft, Drafter


class PromptLookup(Drafter):
    """Drafts what followed the last `match` tokens where they came before in prompt and response."""

    def __init__(self, match: int = 2, probability: float = 0.5):
        self.match = match
        self.probability = probability  # that a drafted token is accepted: budgets weigh a draft by it
        self.texts: dict[str, list[int]] = {}

    def begin(self, request: str, problem: str, prompt: Sequence[int] | np.ndarray, seed: int | None = None) -> None:
        """A request begins with its prompt."""
        self.texts[request] = list(prompt)

    def observe(self, request: str, tokens: Sequence[int] | np.ndarray) -> None:
        """The request's text grows by what a pass emitted."""
        self.texts[request] += list(tokens)

    def propose(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> list[Draft]:
        """What followed the newest earlier place with the same last tokens."""
        drafts = []
        for request, limit in zip(requests, limits, strict=True):
            text, found = self.texts[request], []
            for end in range(len(text) - 1, self.match - 1, -1):
                if text[end - self.match : end] == text[-self.match :]:
                    found = text[end : end + limit]
                    break
            drafts.append(Draft(found, [self.probability] * len(found)))
        return drafts

    def end(self, request: str, keep: bool = True) -> None:
        """The request is over."""
        del self.texts[request]


if __name__ == "__main__":
    from vllm import LLM, SamplingParams

    import das

    if len(sys.argv) < 2:
        sys.exit("say which model: python examples/prompt_lookup.py MODEL")
    das.install()
    params = [SamplingParams(max_tokens=64, temperature=0.5, seed=i) for i in range(8)]
    answers = {}
    for method in ("none", "das"):
        options = das.engine_arguments(
            method, drafter="prompt_lookup:PromptLookup", budget={"name": "fixed", "tokens": 4}
        )
        llm = LLM(sys.argv[1], dtype="float32", enforce_eager=True, kv_cache_memory_bytes=2**30, **options)
        outputs = llm.generate(["what is 3 + 4?"] * len(params), params, use_tqdm=False)
        (report,) = llm.collective_rpc("das_end_rollout", args=(1,))
        answers[method] = [list(output.outputs[0].token_ids) for output in outputs]
        tokens = sum(map(len, answers[method]))
        print(f"{method}: {tokens} tokens, {tokens / report['passes']:.2f} a pass, {report['drafted']} drafted")
        del llm
    print("same tokens:", answers["none"] == answers["das"])
