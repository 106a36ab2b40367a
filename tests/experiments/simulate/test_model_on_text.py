"""Models that draft on recorded text, alone and beside the history, against a slow loop over requests and tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_engines import FORMS, made, slow_text

from das.budget import make_budget
from das.drafter import Drafts, HistoryDrafter
from das.models.hybrid import SURE, Hybrid, NoHistory
from experiments.simulate.cluster import Step, simulate_rollout
from experiments.simulate.hardware import MODELS, derived
from experiments.simulate.latency_forms import Drafting
from experiments.simulate.model_on_text import WRONG, CopyOnText, DraftPass
from experiments.simulate.profile_engine import Profile
from experiments.simulate.scale import CheaperPass
from experiments.simulate.text_engine import TextEngine
from experiments.simulate.times import Times
from experiments.simulate.workload import Workload, workload

RATES = (0.9, 0.7, 0.8)
PRICE = DraftPass(Drafting(2e-3, 1e-5, 0.0, 1e-6), 0.5, 1e-5)


def num_sure(probs: Sequence[float]) -> int:
    """Tokens at the beginning of a draft that are all accepted with a probability of SURE or more."""
    return sum(bool(np.prod(probs[: j + 1]) >= SURE) for j in range(len(probs)))


def copy_of(rates: tuple[float, ...] = RATES, passes: int = 4, **options: Any) -> Hybrid:
    """A copy that makes every pass, because worth is unknown. options: of the model."""
    return Hybrid(CopyOnText(rates, PRICE, **options), passes, lambda: float("nan"))


class Slow:
    """One request after the other, in lists. Stands for the drafter that slow_text asks."""

    def __init__(self, work: Workload, history: HistoryDrafter, passes: int, step: int, state: list[float]):
        self.work, self.history, self.passes = work, history, passes
        self.luck = np.random.default_rng([0, step]).random(len(work.tokens) + 1000)
        self.generated: dict[str, int] = {}
        self.state = state  # [usual]
        self.seconds = 0.0
        self.num_passes = 0

    def begin(self, name: str, problem: str, prompt: Any) -> None:
        self.history.begin(name, problem, prompt)
        self.generated[name] = 0

    def observe_batch(self, names: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
        self.history.observe_batch(names, tokens)
        for name, new in zip(names, tokens, strict=True):
            self.generated[name] += len(new)

    def end(self, name: str) -> None:
        self.history.end(name)

    def model_token(self, name: str, draft: list[int]) -> tuple[int, float]:
        """What the model drafts behind `draft`."""
        place = int(self.work.starts[int(name)]) + self.generated[name]
        text = self.work.tokens[place : place + len(draft)].tolist()
        rate = RATES[min(len(draft), len(RATES) - 1)]
        at = place + len(draft)
        if at >= len(self.work.tokens):
            return (-1 if text == draft and self.luck[at] < rate else WRONG), rate
        return (int(self.work.tokens[at]) if text == draft and self.luck[at] < rate else WRONG), rate

    def pay(self, names: list[str], rows: int, rates: list[float]) -> None:
        context = sum(self.work.prompt + self.generated[name] for name in names)
        self.seconds += float(PRICE.predict(np.array(len(names)), np.array(rows), np.array(context)))
        self.num_passes += 1
        self.state[0] += 0.02 * (float(np.mean(rates)) - self.state[0])

    def propose_batch(self, names: list[str], limits: list[int], floors: Any) -> Drafts:
        drafts = self.turns(names, dict(zip(names, limits, strict=True)))
        width = max(limits)
        tokens, probs = np.zeros((len(names), width), np.int32), np.zeros((len(names), width))
        for row, name in enumerate(names):
            own, of_own = drafts[name]
            tokens[row, : len(own)], probs[row, : len(own)] = own, of_own
        return Drafts(tokens, probs, np.array([len(drafts[name][0]) for name in names], np.int64))

    def behind(self, name: str, draft: list[int], limit: int) -> tuple[list[int], list[float]]:
        own = self.history.propose_behind([name], [draft], [limit - len(draft)])[0]
        return own.tokens, own.probs

    def turns(self, names: list[str], limit: dict[str, int]) -> dict[str, tuple[list[int], list[float]]]:
        tokens: dict[str, list[int]] = {}
        probs: dict[str, list[float]] = {}
        rest = {}
        rows = {}
        for name in names:
            first = self.history.propose_batch([name], [limit[name]])[0]
            sure = num_sure(first.probs)
            tokens[name], probs[name] = first.tokens[:sure], first.probs[:sure]
            rest[name], rows[name] = (first.tokens[sure:], first.probs[sure:]), 1 + sure
        for _ in range(self.passes):
            among = [name for name in names if len(tokens[name]) < limit[name]]
            if not among:
                break
            num_rows, rates = sum(rows[name] for name in among), []
            for name in among:
                token, rate = self.model_token(name, tokens[name])
                rates.append(rate)
                tokens[name] = [*tokens[name], token]
                probs[name] = [*probs[name], rate]
                own, of_own = self.behind(name, tokens[name], limit[name])
                sure = num_sure(of_own)
                tokens[name] += own[:sure]
                probs[name] += of_own[:sure]
                rest[name], rows[name] = (own[sure:], of_own[sure:]), 1 + sure
            self.pay(among, num_rows, rates)
        return {name: (tokens[name] + rest[name][0], probs[name] + rest[name][1]) for name in names}


@pytest.mark.parametrize("seed", range(12))
def test_hybrids_are_the_loop(seed: int) -> None:
    """Times, passes, drafted and accepted tokens, with a history of an earlier step in the second."""
    max_num_seqs, passes = 1 + seed % 7, 1 + seed % 4
    times = Times(FORMS[seed % 3], host=1e-3, prefill=1e-5, draft_request=1e-5, draft_token=1e-6)
    budget = {"name": "fixed", "tokens": 6}
    own, history, state = HistoryDrafter(min_prob=0.05), HistoryDrafter(min_prob=0.05), [1.0]
    engine = TextEngine(times, max_num_seqs, own, make_budget(budget), 400, hybrid=copy_of(passes=passes))
    for tick in (1, 2):
        work = made(seed)
        step = simulate_rollout(work, [engine], [range(len(work))], tick)
        slow = Slow(work, history, passes, tick - 1, state)
        expected = slow_text(work, times, max_num_seqs, slow, make_budget(budget), 400)  # type: ignore[arg-type]
        history.end_step(tick)
        assert (step.passes, step.num_drafted, step.num_accepted) == expected.counts
        assert engine.draft_passes == slow.num_passes > 0
        assert step.rollout_s == pytest.approx(expected.seconds + slow.seconds - slow_tail(slow, engine))
        assert step.num_accepted > 0


def slow_tail(slow: Slow, engine: TextEngine) -> float:
    """Seconds of drafts that no pass verifies: those after the last pass of the rollout."""
    return sum(took for _, took in engine._model_work.passes)


def rollout(hybrid: Hybrid, budget: dict[str, Any], work: Workload) -> Step:
    engine = TextEngine(Times(FORMS[0]), 16, NoHistory(), make_budget(budget), 2000, hybrid=hybrid)
    return simulate_rollout(work, [engine], [range(len(work))], 1)


@pytest.mark.parametrize("rates", [(0.9893,), RATES, (0.5,)])
@pytest.mark.parametrize("tokens", [3, 7])
def test_a_model_alone_has_the_closed_form_of_tau(rates: tuple[float, ...], tokens: int) -> None:
    random = np.random.default_rng(1)
    work = workload([str(i) for i in range(40)], [random.integers(0, 99, 1500) for _ in range(40)])
    step = rollout(copy_of(rates, tokens), {"name": "fixed", "tokens": tokens}, work)
    tau = Profile((rates + rates[-1:] * tokens)[:tokens]).tau
    assert step.tokens_per_pass == pytest.approx(tau, rel=0.02)


def test_luck_is_a_places_own() -> None:
    """Where a model alone is right does not depend on how long its drafts are: with depth no matter, few passes verify
    what many do."""
    work = workload(["a"], [np.random.default_rng(2).integers(0, 99, 1500)])
    wrong = [rollout(copy_of((0.8,), k), {"name": "fixed", "tokens": k}, work) for k in (1, 60)]
    # With drafts of 60 tokens every pass but the last ends at a place where the model is wrong, or after 60 tokens.
    luck = np.random.default_rng([0, 0]).random(1500 + 61)[:1500]
    assert wrong[1].passes <= np.count_nonzero(luck >= 0.8) + 1500 / 61 + 1
    assert wrong[0].passes > wrong[1].passes


def test_a_model_drafts_nothing_while_too_many_are_live() -> None:
    work = made(3)
    times, budget = Times(FORMS[0]), {"name": "fixed", "tokens": 6}
    engine, alone = (
        TextEngine(times, 4, HistoryDrafter(), make_budget(budget), 400, hybrid=hybrid)
        for hybrid in (copy_of(most_live=0), None)
    )
    steps = [simulate_rollout(work, [one], [range(len(work))], 1) for one in (engine, alone)]
    assert engine.draft_passes == 0
    assert steps[0].rollout_s == steps[1].rollout_s


def test_a_pass_that_does_not_pay_is_not_made() -> None:
    """At a price far above what tokens are worth, only the passes that learn it are made."""
    work = made(4, problems=4, group=16)
    hybrid = Hybrid(CopyOnText(RATES, DraftPass(PRICE.form, 0.5, 10.0)), 4, lambda: 1e-3)
    budget = make_budget({"name": "fixed", "tokens": 6})
    engine = TextEngine(Times(FORMS[0]), 4, HistoryDrafter(), budget, 400, hybrid=hybrid)
    simulate_rollout(work, [engine], [range(len(work))], 1)
    assert engine.draft_passes == 1


def test_a_copy_of_fewer_bits_reads_fewer_weights() -> None:
    form = derived("H100", "7B")
    one = np.array(1.0)
    full, copy = (float(f.predict(one, one, np.array(0.0))) for f in (form, replace(form, weights=0.345)))
    weights_s = float(MODELS["7B"].weight_bytes(one)) / (3.35e12 * 0.776)
    assert full - copy == pytest.approx((1 - 0.345) * weights_s)
    cheaper = CheaperPass(Drafting(10e-3, 1e-3, 0.0, 1e-4), 0.25)
    assert float(cheaper.predict(np.array(2.0), np.array(5.0), np.array(9.0))) == pytest.approx(2.5e-3 + 2e-3 + 3e-4)
