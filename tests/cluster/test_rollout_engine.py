"""An engine that is stepped in a thread of its own gives the responses of one that is called directly."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PROMPTS, SMALL, Engines, roll
from safetensors.torch import load_file
from vllm import SamplingParams

from das.cluster.rollout_engine import EngineRequest, RolloutEngine, packed
from das.drafter.saved import SavedText
from das.engine.rollouts.report import Finished
from das.engine.settings import EngineSettings

REQUESTS = [EngineRequest(i, PROMPTS[i % 4], str(i % 4), 1000 + i) for i in range(24)]
PARAMS = SamplingParams(temperature=1.0, max_tokens=60, logprobs=0)


@pytest.fixture(scope="module")
def expected(engines: Engines, repetitive_policy: str) -> Any:
    """Tokens and log-probs by vLLM's own generate."""
    llm = engines.build(repetitive_policy)
    params = [SamplingParams(temperature=1.0, max_tokens=60, logprobs=0, seed=r.seed) for r in REQUESTS]
    tokens, logprobs, _ = roll(llm, [list(r.prompt) for r in REQUESTS], params, [r.problem for r in REQUESTS], 1)
    engines.close()
    return tokens, [[position[0][1] for position in of_response] for of_response in logprobs]


@pytest.fixture(scope="module")
def engine(expected: Any, repetitive_policy: str) -> Any:
    settings = EngineSettings(model=repetitive_policy, method="das", **SMALL)
    engine = RolloutEngine()
    engine.start(settings)
    return engine


def finish(
    engine: RolloutEngine, requests: list[EngineRequest], history: Sequence[SavedText] = ()
) -> dict[int, Finished]:
    """Hand the requests out in two parts and collect the responses."""
    found: dict[int, Finished] = {}
    new, later = requests[: len(requests) // 2], requests[len(requests) // 2 :]
    while len(found) < len(requests):
        for response in engine.poll(new, len(later), 1.0, history):
            assert int(response.name) not in found
            found[int(response.name)] = response
        new, later, history = later, [], ()
    return found


def equal(found: dict[int, Finished], expected: Any) -> None:
    tokens, logprobs = expected
    for index, response in found.items():
        assert response.tokens == tokens[index]
        assert response.logprobs == logprobs[index]


def test_an_engine_that_joins_amid_a_rollout_of_several_turns_begins_one(engine: RolloutEngine) -> None:
    """So what its drafter remembers of a response goes to the other engines, too."""
    engine.begin(PARAMS, 0, turn=1)
    found = finish(engine, [EngineRequest(0, PROMPTS[0], "of the second turn", 7)])
    assert found[0].distributions is not None
    engine.end_turn()
    engine.end(0)


def test_responses_are_those_of_generate(engine: RolloutEngine, expected: Any) -> None:
    """Also where the history holds the same texts, so that drafts are accepted."""
    accepted = []
    for rollout in range(3):
        engine.begin(PARAMS, 0)
        found = finish(engine, REQUESTS)
        report = engine.end(rollout + 1)
        equal(found, expected)
        emitted = sum(len(response.tokens) for response in found.values())
        assert report.passes == sum(response.passes for response in found.values())
        accepted.append(emitted - report.passes)
        assert all(response.predicted_length is not None for response in found.values())
    assert accepted[2] > accepted[0]


def test_requests_of_a_rollout_that_ended_elsewhere_leave_nothing(engine: RolloutEngine, expected: Any) -> None:
    """Whether the rollout ends, because others delivered them, or is given up for the next one."""
    engine.begin(PARAMS, 0)
    engine.poll(REQUESTS[:4], 0, timeout_s=0.0)
    engine.end(4)
    engine.poll(REQUESTS[4:8], 0, timeout_s=0.0)
    engine.begin(PARAMS, 0)
    found = finish(engine, REQUESTS[8:])
    assert sorted(found) == list(range(8, 24))
    equal(found, expected)
    assert engine.poll([], 0, timeout_s=0.0) == []
    engine.end(4)


def test_history_of_other_engines_is_drafted_from(engine: RolloutEngine, expected: Any) -> None:
    """Problem 'new' was never rolled out here. With the responses of another engine, its drafts are accepted."""
    tokens, _ = expected
    accepted = []
    for problem, texts in (("unknown", []), ("new", tokens)):
        prompt = np.array(PROMPTS[0], np.int32)
        history = [SavedText(problem, 5, len(prompt), np.array([*prompt, *text], np.int32)) for text in texts]
        engine.begin(PARAMS, 5)
        found = finish(engine, [EngineRequest(0, PROMPTS[0], problem, 1000)], history=history)
        assert found[0].tokens == tokens[0]
        accepted.append(len(tokens[0]) - found[0].passes)
        engine.end(5)
    assert accepted[1] > accepted[0]


def test_weights_arrive_or_it_says_what_did_not(
    engine: RolloutEngine, expected: Any, repetitive_policy: str, tmp_path: Any
) -> None:
    tensors = load_file(f"{repetitive_policy}/model.safetensors")
    louder = {name: tensor * (0.25 if name == "model.norm.weight" else 1.0) for name, tensor in tensors.items()}
    for version, held in ((1, louder), (2, tensors)):
        parts = [*packed(list(held.items())[:5]), *packed(list(held.items())[5:])]
        assert engine.load_weights(version, sorted(held), *parts) == ""
        engine.begin(PARAMS, 0)
        found = finish(engine, REQUESTS)
        engine.end(5 + version)
        same = [found[i].tokens == expected[0][i] for i in range(24)]
        assert all(same) if held is tensors else not all(same)
    head = packed([("fc.weight", torch.zeros(2, 2))], drafter=True)
    assert "no drafter that is a model" in engine.load_weights(3, [], *head)
    with pytest.raises((KeyError, ValueError)):
        engine.load_weights(3, [], *packed([("model.strange", torch.zeros(1))]))


def test_responses_that_nobody_waits_for_come_together(engine: RolloutEngine, expected: Any) -> None:
    assert len({len(tokens) for tokens in expected[0][:8]}) > 2
    num_answers = []
    for waiting in (0, 1):
        engine.begin(PARAMS, 0)
        new, found, answers = REQUESTS[:8], 0, 0
        while found < 8:
            found += len(engine.poll(new, waiting, timeout_s=60.0))
            new, answers = [], answers + 1
        engine.end(8)
        num_answers.append(answers)
    assert num_answers[0] == 1
    assert num_answers[1] > 1


def test_a_poll_raises_what_a_pass_raised(engine: RolloutEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Last, because the engine is gone afterwards."""
    engine.begin(PARAMS, 0)
    monkeypatch.setattr(engine.llm.llm_engine, "step", None)
    for _ in range(2):
        with pytest.raises(TypeError, match="NoneType"):
            finish(engine, REQUESTS[:2])
