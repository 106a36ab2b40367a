"""Generated requests of every kind, and an engine's answers to them. The identity tests share this module."""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st
from vllm.sampling_params import RequestOutputKind

from das.engine.rollouts.report import finished_from_plain
from das.verify.admission import made_seed

PROBLEMS = 6
LIMITS = (0, 1, 2, 8, 32, 64)  # draft limits in tokens, from which each pass draws one for each request
STOP_STRINGS = ("add", "1", "is ", "so", "e", "\n", "0 1")  # texts that occur in the tiny policy's random tokens
MAX_MODEL_LEN = 192
ABORT_AFTER = 2  # passes


def prompts() -> list[list[int]]:
    """Token ids, one prompt a problem. Some share a beginning (prefix caching); one nearly fills max_model_len."""
    rng = np.random.default_rng(0)
    longest = rng.integers(6, 250, size=170).tolist()
    unrelated = rng.integers(6, 250, size=17).tolist()
    return [longest[:2], longest[:40], [*longest[:90], 7, 8, 9], unrelated, longest, longest[:33]]


@dataclass(frozen=True)
class Case:
    """One request: its problem, which decides its prompt, and the arguments of its SamplingParams."""

    problem: int
    arguments: dict[str, Any] = field(hash=False)

    def params(self) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        from das.verify.admission import PROBLEM_KEY

        # As in training, text is made only where stop strings need it.
        arguments = {"detokenize": "stop" in self.arguments, **self.arguments}
        if "regex" in arguments:
            arguments["structured_outputs"] = StructuredOutputsParams(regex=arguments.pop("regex"))
        return SamplingParams(**arguments, extra_args={PROBLEM_KEY: str(self.problem)})


def maybe(name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The argument `name` in one request of four, and nothing in the others."""
    return st.integers(0, 3).flatmap(lambda n: values.map(lambda value: {name: value}) if n == 0 else st.just({}))


TOKEN = st.integers(0, 250)
FEATURES = (
    maybe("top_k", st.sampled_from([1, 2, 10, 100])),
    maybe("top_p", st.sampled_from([0.3, 0.9, 0.99])),
    maybe("min_p", st.sampled_from([0.01, 0.2])),
    maybe("logprobs", st.sampled_from([0, 5])),
    maybe("stop_token_ids", st.lists(TOKEN, min_size=1, max_size=12)),
    # Every fourth token is a stop token here, so most of these end right after min_tokens, in the middle of a draft.
    st.integers(1, 40).map(lambda minimum: {"min_tokens": minimum, "stop_token_ids": list(range(30, 100))}),
    maybe("min_tokens", st.integers(1, 40)),
    maybe("logit_bias", st.dictionaries(TOKEN, st.sampled_from([-100.0, -100.0, -3.0, 6.0]), min_size=1, max_size=4)),
    maybe("allowed_token_ids", st.lists(TOKEN, min_size=3, max_size=120, unique=True)),
    maybe("bad_words", st.lists(st.sampled_from(["add", "1", "is", "so", "0 1"]), min_size=1, max_size=3)),
    maybe("repetition_penalty", st.sampled_from([0.8, 1.3])),
    maybe("frequency_penalty", st.sampled_from([-0.5, 0.7])),
    maybe("presence_penalty", st.sampled_from([-0.5, 1.0])),
    maybe("n", st.integers(2, 3)),
    maybe("ignore_eos", st.just(True)),
)
STOPS = st.fixed_dictionaries(
    {"stop": st.lists(st.sampled_from(STOP_STRINGS), min_size=1, max_size=3)},
    optional={"include_stop_str_in_output": st.just(True)},
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A request. Most requests use few features, some use many."""
    arguments: dict[str, Any] = {
        "temperature": draw(st.sampled_from([1.0, 1.0, 0.6, 0.0, 0.2, 1.5])),
        "seed": draw(st.one_of(st.none(), st.integers(0, 2**40))),
        "max_tokens": draw(st.sampled_from([1, 2, 9, 40, 60, 60, 400])),
    }
    for feature in draw(st.lists(st.sampled_from(FEATURES), max_size=6, unique=True)):
        arguments |= draw(feature)
    if draw(st.integers(0, 4)) == 0:
        arguments |= draw(STOPS)
    if draw(st.integers(0, 9)) == 0:  # a grammar, without the features that could leave it no token
        arguments = {name: arguments[name] for name in ("temperature", "seed", "max_tokens")}
        arguments |= {"regex": "[0-9]{3,40}x", "logprobs": 5, "min_tokens": draw(st.sampled_from([0, 0, 5, 45]))}
    if arguments["temperature"] == 0.0:
        arguments.pop("n", None)  # vLLM refuses n > 1 when greedy
    if "min_tokens" in arguments:
        arguments["min_tokens"] = min(arguments["min_tokens"], arguments["max_tokens"])
    return Case(draw(st.integers(0, PROBLEMS - 1)), arguments)


BATCHES = st.lists(cases(), min_size=1, max_size=20)


def answers(
    llm: Any,
    batch: Sequence[Case],
    order: Sequence[int] | None = None,
    history_tick: int = 0,
    aborted: Collection[int] = (),
) -> tuple[list[Any], dict[str, Any]]:
    """Everything the engine returns for each request, in the batch's order, and the rollout's report.

    order: the permutation in which the requests are handed to the engine. history_tick: the time at which the drafter's
    history receives the responses. aborted: requests that are given up amid the rollout, of which the answer is None.
    """
    order = list(range(len(batch))) if order is None else order
    texts, engine = prompts(), llm.llm_engine
    # Requests without a seed get the same ones once more.
    engine.input_processor.das_seeds = map(partial(made_seed, 0, 0), itertools.count())
    llm.collective_rpc("das_begin_rollout", args=(len(batch),))
    for i in order:
        params = batch[i].params()
        params.output_kind = RequestOutputKind.FINAL_ONLY
        engine.add_request(str(i), {"prompt_token_ids": texts[batch[i].problem]}, params)
    responses: list[Any] = [None] * len(batch)
    steps = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            responses[int(output.request_id)] = [plain(sample) for sample in output.outputs]
        steps += 1
        if steps == ABORT_AFTER and aborted:
            engine.abort_request([str(i) for i in aborted if responses[i] is None])
    report = llm.collective_rpc("das_end_rollout", args=(history_tick,))[0]
    costs = finished_from_plain(report)
    for i, samples in enumerate(responses):
        if samples is None or "stop" in batch[i].arguments:  # the engine does not know the end that a stop string makes
            continue
        for place, sample in enumerate(samples):
            cost = costs[str(i) if len(samples) == 1 else f"{place}_{i}"]
            assert cost.accepted == len(sample["tokens"]) - cost.passes
    return responses, report


def plain(sample: Any) -> dict[str, Any]:
    return {
        "tokens": list(sample.token_ids),
        "finish": (sample.finish_reason, sample.stop_reason),
        "text": sample.text,
        "logprobs": sample.logprobs
        and [
            sorted((token, entry.logprob, entry.rank) for token, entry in position.items())
            for position in sample.logprobs
        ],
        "cumulative": sample.cumulative_logprob,
    }


def core_of(llm: Any) -> Any:
    """vLLM's engine core, which lives in this process."""
    return llm.llm_engine.engine_core.engine_core


def das_runner_of(llm: Any) -> Any:
    """What das adds to its model runner."""
    return core_of(llm).model_executor.driver_worker.worker.das_runner
