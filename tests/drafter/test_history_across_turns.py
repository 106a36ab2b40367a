"""Conversations of several turns: each turn is a request of its own, and the samples of a problem share all turns."""

import pytest

from das.drafter import HistoryDrafter, history

QUESTION = list(range(100, 120))
# What stands between a tool's result and the policy's next turn, as in Qwen's template: eight tokens.
AFTER_RESULT = list(range(200, 208))
TURNS = {result: [50, 51, *range(1000 * result, 1000 * result + 26)] for result in range(1, 7)}  # after each result


def finish(drafter: HistoryDrafter, name: str, prompt: list[int], text: list[int]) -> int:
    """Decode a turn with drafts of up to 8 tokens, the first pass without. Returns how many tokens were accepted."""
    drafter.begin(name, "p", prompt)
    drafter.observe(name, text[:1])
    accepted, done = 0, 1
    while done < len(text):
        (draft,) = drafter.propose([name], [min(8, len(text) - done - 1)])
        wrong = [a != b for a, b in zip(draft.tokens, text[done:], strict=False)]
        right = wrong.index(True) if True in wrong else len(wrong)
        drafter.observe(name, text[done : done + right + 1])
        accepted, done = accepted + right, done + right + 1
    drafter.end(name)
    return accepted


def test_a_turn_drafts_from_another_samples_earlier_turn() -> None:
    """At once: the window moves only after the last turn."""
    drafter = HistoryDrafter()
    first, second = TURNS[1], TURNS[2]
    assert finish(drafter, "a, turn 1", QUESTION, first) == 0
    prompt = [*QUESTION, *second, 9, *AFTER_RESULT]  # b had another first turn, and now says what a said
    assert finish(drafter, "b, turn 2", prompt, first) > 20


def accepted_in_later_turns() -> int:
    """Eight samples in each of four steps call a tool, and go on as its result demands."""
    drafter, accepted = HistoryDrafter(remember="tokens"), 0
    for step in range(4):
        for sample in range(8):
            result = 1 + (5 * step + 3 * sample) % len(TURNS)
            call = [300 + result] * 4
            finish(drafter, f"{step} {sample} 1", QUESTION, call)
            prompt = [*QUESTION, *call, 10 * result, *AFTER_RESULT]
            accepted += finish(drafter, f"{step} {sample} 2", prompt, TURNS[result])
        drafter.move_window(step + 1)
    return accepted


def test_a_turn_begins_as_others_did_after_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """The context that is stored before a turn reaches back to the tool's result."""
    accepted = accepted_in_later_turns()
    monkeypatch.setattr(history, "PROMPT_CONTEXT", len(AFTER_RESULT))
    assert accepted > accepted_in_later_turns() + 15
