"""Exactness level 2 in real engines: drafts change no token, text, stop reason or log-prob of any request.

Each engine of ladder.METHODS answers the same batch four times: with an empty history, with the same answers in its
history (long drafts are accepted), in another order while some requests are aborted, and under new weights. Then it
emits recorded tokens. Bugs made on purpose with which this was seen to fail are listed in tests/properties.md.
"""

import copy
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ladder
import numpy as np
import pytest
from cases import answers, core_of, prompts
from conftest import Engines, in_a_fork
from ladder import FIXED, METHODS, NIGHTLY, SLOW, STORED, built, known_to_vllm, near_copy, permuted, use_new_weights

from das.drafter import HistoryDrafter
from das.drafter.thread import DraftThread
from das.engine import proposer
from das.engine.patches.front_end import let_force
from das.engine.proposer import DasProposer
from das.engine.runner import late_lengths
from das.verify.admission import FORCED_KEY
from das.verify.layout import remembered_of
from experiments.digests import digest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="session")
def expected(made_once: Callable[..., Path], tiny_policy: str) -> dict[str, Any]:
    """The answers without drafts, with the old weights and with new ones."""

    def make(folder: Path) -> None:
        (folder / "answers").write_bytes(pickle.dumps(in_a_fork(ladder.baseline, tiny_policy)))

    found: dict[str, Any] = pickle.loads((made_once("identity", make) / "answers").read_bytes())
    return found


def test_the_answers_are_those_that_are_stored(expected: dict[str, Any]) -> None:
    samples = [sample for samples in expected["old"][: len(FIXED)] for sample in samples]
    assert digest(*[np.array(sample["tokens"], np.int64) for sample in samples]) == STORED
    assert expected["new"] != expected["old"]


def marks(name: str) -> Any:
    return pytest.mark.nightly if name in NIGHTLY else pytest.mark.slow if name in SLOW else ()


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in METHODS])
def test_drafts_change_nothing(
    engines: Engines,
    tiny_policy: str,
    expected: dict[str, Any],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    method, batch, draft_model = METHODS[name], copy.deepcopy(expected["batch"]), ""
    if method.draft_noise is not None:
        draft_model = near_copy(tiny_policy, tmp_path / "draft", method.draft_noise)
        asked = known_to_vllm(batch)
        batch, expected = [batch[i] for i in asked], {k: [expected[k][i] for i in asked] for k in ("old", "new")}
    monkeypatch.syspath_prepend(EXAMPLES)
    if method.remembered:
        rng = np.random.default_rng(0)

        def changed(*args: Any) -> np.ndarray | None:
            true = remembered_of(*args)
            return None if true is None else method.remembered(true, rng)

        monkeypatch.setattr(proposer, "remembered_of", changed)
    uneven = 0
    choose = ladder.split_at_random if method.plans_at_random else late_lengths.admitted

    def choose_and_count(*args: Any) -> np.ndarray:
        nonlocal uneven
        lengths = choose(*args)
        uneven += int(lengths.min() < lengths.max())
        return lengths

    monkeypatch.setattr(late_lengths, "admitted", choose_and_count)
    if method.plans_at_random:
        order = random.Random(1)
        monkeypatch.setattr(DasProposer, "rows_ahead", lambda *args: order.choice((0, 1, 3, 9, 24)))
    llm = built(engines, tiny_policy, method, draft_model)
    if method.settings.get("asynchronous"):
        assert type(core_of(llm).scheduler).__name__ == "AsyncScheduler"
    preempted: list[None] = []
    preempt = core_of(llm).scheduler._preempt_request

    def preempt_and_count(*args: Any, **kwargs: Any) -> Any:
        preempted.append(None)
        return preempt(*args, **kwargs)

    monkeypatch.setattr(core_of(llm).scheduler, "_preempt_request", preempt_and_count)
    num_drafted = num_accepted = undrafted_rows = launched_ahead = by_thread = 0
    draft_ahead = HistoryDrafter.draft_ahead

    def draft_and_count(*args: Any) -> None:
        nonlocal by_thread
        if method.by_thread:
            by_thread += 1
            draft_ahead(*args)

    monkeypatch.setattr(HistoryDrafter, "draft_ahead", draft_and_count)

    def turn(weights: str, tick: int, **how: Any) -> None:
        nonlocal num_drafted, num_accepted, undrafted_rows, launched_ahead
        found, report = answers(llm, batch, history_tick=tick, **how)
        num_drafted += report["drafted"]
        num_accepted += report["accepted"]
        undrafted_rows += report["undrafted_rows"]
        launched_ahead += report["launched_ahead"]
        num_aborted = sum(answer is None for answer in found)
        assert num_aborted <= len(how.get("aborted", ()))
        assert num_aborted or "aborted" not in how
        for case, answer, of_none in zip(batch, found, expected[weights], strict=True):
            assert answer is None or answer == of_none, case

    if method.foreign:
        ladder.give_foreign_history(llm, batch, expected["old"], method.foreign)
    turn("old", 1)
    if method.settings.get("method") != "none":
        turn("old", 2)
    turn("old", 3, order=permuted(batch, random.Random(0)), aborted=range(len(FIXED), len(FIXED) + 3))
    before = llm.collective_rpc(weights_that_draft)
    use_new_weights(llm)
    turn("new", 4)
    assert llm.collective_rpc(weights_that_draft) == before, "a draft model keeps its own"
    assert num_accepted > method.accepted or not method.accepted, "the comparison would prove nothing"
    assert num_accepted >= method.share * num_drafted, num_accepted / num_drafted
    assert len(preempted) > 20 or not method.preempts
    assert undrafted_rows > 0 or not method.settings.get("asynchronous"), "planned for drafts that nobody made"
    assert by_thread > 20 or not (method.settings.get("asynchronous") and method.by_thread), "the thread did nothing"
    assert uneven > 20 or not method.settings.get("asynchronous"), "lengths that the host had guessed"
    assert launched_ahead > 20 or not method.settings.get("asynchronous"), "each pass waited for its drafts"
    force(llm)


@pytest.mark.slow
def test_drafts_change_nothing_for_256_live_requests(
    engines: Engines, tiny_policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths are decided late, by what the thread drafted, from a full batch down to its last request."""
    batch = ladder.LIVE
    settings: dict[str, Any] = {"max_num_seqs": len(batch), "max_num_batched_tokens": 8192}
    expected, _ = answers(engines.build(tiny_policy, method="none", **settings), batch)
    lengths, by_thread, admitted, drafts = [], [], late_lengths.admitted, DraftThread.drafts
    monkeypatch.setattr(late_lengths, "admitted", lambda *args: lengths.append(own := admitted(*args)) or own)
    monkeypatch.setattr(DraftThread, "drafts", lambda *args: by_thread.append(made := drafts(*args)) or made)
    llm = engines.build(tiny_policy, method="das", asynchronous=True, **settings, **ladder.fixed(4))
    for tick in (1, 2):
        found, report = answers(llm, batch, history_tick=tick)
        for case, answer, of_none in zip(batch, found, expected, strict=True):
            assert answer == of_none, case
    assert report["accepted"] > 1000
    assert max(map(len, lengths)) > 240, "few of them end with their first token"
    assert sum(len(own) > 150 and own.min() < own.max() for own in lengths) > 5, "few late passes of many requests"
    assert sum(made is not None for made in by_thread) > 20


def weights_that_draft(worker: Any) -> float:
    """The sum of a draft model's weights; 0 if there is none."""
    model = getattr(worker.model_runner.speculator, "model", None)
    return 0.0 if model is None else float(sum(each.double().abs().sum() for each in model.parameters()))


def force(llm: Any) -> None:
    """Requests emit recorded tokens, and one that is not forced what it emits anyway."""
    from vllm import SamplingParams

    rng = np.random.default_rng(0)
    recorded = {str(i): rng.integers(5, 250, 20 + 15 * i).tolist() for i in range(4)}
    let_force(llm)
    texts = []
    for responses in ({}, recorded, recorded):
        llm.collective_rpc("das_force", args=(responses, None))
        params = [SamplingParams(temperature=1.0, max_tokens=80, seed=99)]
        for name, tokens in responses.items():
            params.append(SamplingParams(max_tokens=len(tokens), ignore_eos=True, extra_args={FORCED_KEY: name}))
        outputs = llm.generate([{"prompt_token_ids": prompts()[1]}] * len(params), params, use_tqdm=False)
        texts.append([list(output.outputs[0].token_ids) for output in outputs])
    assert texts[1] == texts[2] == [*texts[0], *recorded.values()]
