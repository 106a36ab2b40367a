"""What a meter counts: the tokens of responses, and nothing that a pass emitted behind a response's end."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import das
from das.engine.requests import Request, stop_tokens
from das.engine.rollouts.meter import RolloutMeter, end_of_response
from das.engine.rollouts.report import Finished

EOS = 9


def params(**values: Any) -> SimpleNamespace:
    given = {"max_tokens": 50, "min_tokens": 0, "stop_token_ids": []} | values
    return SimpleNamespace(**given, ignore_eos=False, all_stop_token_ids={EOS, *given["stop_token_ids"]})


def request_of(name: str, **values: Any) -> Request:
    given = params(**values)
    return Request(name, "p", 99, params=given, stop_tokens=stop_tokens(given))


def metered(passes: Sequence[Sequence[int]], **values: Any) -> RolloutMeter:
    """A request whose passes emitted these tokens, beside one that drafts nothing."""
    request, other = request_of("a", **values), request_of("b")
    meter = RolloutMeter()
    for new in passes:
        request.output_token_ids += new
        other.output_token_ids += [1]
        meter.record_pass([request, other], [len(new) - 1, 0], [len(new), 1])
    return meter


ENDS: dict[str, tuple[dict[str, Any], list[list[int]], list[int]]] = {
    "an end token inside the last pass": ({}, [[1, 2, 3], [4, EOS, 5, 6]], [3, 2]),
    "a pass after the end": ({}, [[1, 2, 3], [4, EOS, 1], [1, 2]], [3, 2]),
    "max_tokens": ({"max_tokens": 3}, [[1, 2], [3, 4, 5]], [2, 1]),
    "no end": ({}, [[1, 2], [3, 4, 5]], [2, 3]),
}


@pytest.mark.parametrize("name", ENDS)
def test_tokens_behind_the_end_do_not_count(name: str) -> None:
    given, passes, kept = ENDS[name]
    meter = metered(passes, **given)
    report = meter.report(meter.finished())
    cost, others = meter.finished()[meter.requests[0]], len(passes)
    assert (cost.emitted, cost.passes) == (kept, len(kept))
    assert report.passes == len(kept) + others
    assert report.accepted == cost.accepted == sum(kept) - len(kept)
    assert sum(report.step_emitted) == sum(kept) + others
    assert meter.report(meter.finished()) == report
    drafted = sum(len(new) - 1 for new in passes)
    assert f" {report.passes} passes in place of {sum(kept) + others}, " in das.rollout_sentence(report.plain())
    assert f"das: {report.accepted} of {drafted} drafted" in das.rollout_sentence(report.plain())


def test_where_a_request_began_before_the_rollout_its_end_is_found_all_the_same() -> None:
    request = request_of("a")
    request.output_token_ids = [1, EOS, 2, 3, EOS, 4]  # min_tokens allowed the first one
    assert end_of_response(request, 3) == 5


@pytest.mark.parametrize(
    ("passes", "emitted", "tokens", "kept"),
    [
        (6, None, 5, (5, None)),  # no drafts: a token a pass
        (1, None, 0, (1, None)),  # a prompt that has no room for a token
        (3, [4, 1, 3], 8, (3, [4, 1, 3])),
        (4, [4, 1, 3, 2], 7, (3, [4, 1, 2])),
        (2, [4, 1], 2, (1, [2])),
    ],
)
def test_only_passes_and_tokens_of_the_response_count(
    passes: int, emitted: list[int] | None, tokens: int, kept: tuple[int, list[int] | None]
) -> None:
    cost = Finished(passes, drafted=3, emitted=emitted).cut(tokens)
    assert (cost.passes, cost.emitted) == kept
    assert cost.drafted == 3
    assert cost.accepted == (0 if emitted is None else tokens - cost.passes)
