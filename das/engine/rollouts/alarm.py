"""The alarm reports, one rollout after speculation stops working, what went wrong and where to look.

It compares a rollout with the rollouts before it: tokens accepted per pass, problem ids against prompts, and what
joined the history. A drafter with a stale index or with wrong problem ids still runs and still changes no token.
Without an alarm only the rollout time would show it.
"""

import logging
from array import array
from collections import deque
from collections.abc import Sequence
from statistics import median

from das.budget import LiveRequest

COLLAPSE = 3.0  # acceptance collapsed if it is less than the usual one divided by this
USUAL = 8  # "usual" is the median of this many rollouts
ENOUGH = 3  # with fewer rollouts there is no "usual"
MIN_PASSES = 100  # a rollout with fewer target passes (summed over requests) is not judged
MAX_PROMPT_TOKENS = 2**24  # tokens of prompts to remember (some 100 MB); when there are more, all are forgotten
ENTRY = 64  # the bookkeeping of a prompt counts as so many tokens
KEY = "(column problem_id of a dataset, das_problem of a request)"
MIN_ACCEPTED = 0.1  # if usually fewer tokens are accepted per pass, nothing can collapse


def _held(prompt: "array[int] | None") -> int:
    """Return how many tokens of the limit MAX_PROMPT_TOKENS a remembered prompt uses: its length plus ENTRY; 0 for
    None."""
    return 0 if prompt is None else len(prompt) + ENTRY


class Alarm:
    """Watches one drafter in one engine, and reports when its drafts seem to have stopped working."""

    def __init__(self) -> None:
        self.usual: deque[tuple[float, float]] = deque(maxlen=USUAL)  # accepted per pass, accepted per drafted token
        self._prompt_of: dict[str, array[int]] = {}  # the newest prompt of each problem, up to the last rollout
        self._new_prompt_of: dict[str, array[int]] = {}  # the newest prompt of each problem in the running rollout
        self._prompt_tokens = 0  # tokens in both, plus ENTRY for each prompt and for each entry of `_problem_of`
        self._problem_of: dict[int, str] = {}  # the problem of each prompt, by the prompt's hash
        self._requests = self._other_prompt = self._other_problem = 0  # counts of the running rollout
        self._told: set[str] = set()  # what is wrong with the ids is said once: it stays wrong in each rollout

    def begin(self, problem: str, prompt: Sequence[int]) -> None:
        """Note a request that starts. problem: its problem id. prompt: token ids."""
        if self._prompt_tokens > MAX_PROMPT_TOKENS:
            self._prompt_of.clear()
            self._new_prompt_of.clear()
            self._problem_of.clear()
            self._prompt_tokens = 0
        now = array("i", prompt)
        before = self._prompt_of.get(problem) or self._new_prompt_of.get(problem, now)
        shared = min(len(before), len(now))
        self._requests += 1
        self._other_prompt += before[:shared] != now[:shared]
        if now[: len(before)] == before:
            now = before  # a conversation's next turn: only the first prompt is the same in all siblings
        self._prompt_tokens += _held(now) - _held(self._new_prompt_of.get(problem))
        self._new_prompt_of[problem] = now
        self._prompt_tokens += ENTRY * ((key := hash(now.tobytes())) not in self._problem_of)
        self._other_problem += self._problem_of.setdefault(key, problem) != problem

    def end_step(
        self,
        passes: int,
        num_drafted: int,
        num_accepted: int,
        lost_tokens: int,
        judged: bool = True,
        declined: bool = False,
    ) -> list[str]:
        """Judge the rollout that ended. Returns a line for each thing that is wrong with it; [] if nothing is.

        passes, num_drafted, num_accepted: sums over its requests. lost_tokens: response tokens that finished but did
        not join the history. judged: False for an evaluation, which is not compared with the training's rollouts.
        declined: whether there was a pass for which the budget cut everything that was drafted.
        """
        wrong = self._wrong_ids()
        alarms = [line for kind, line in wrong.items() if kind not in self._told]
        if not judged:
            return []
        self._told |= wrong.keys()
        if lost_tokens > 0:
            alarms.append(f"the index is stale: {lost_tokens} response tokens of this rollout did not join the history")
        if passes < MIN_PASSES:
            return alarms
        accepted, share = num_accepted / passes, num_accepted / max(1, num_drafted)
        usual, usual_share = (
            (median(column) for column in zip(*self.usual, strict=True)) if len(self.usual) >= ENOUGH else (0.0, 0.0)
        )
        # If drafts are as good as ever but fewer, or if all were cut, this was the budget's choice: a pass with drafts
        # may take too long on a busy machine. If there were no drafts to cut, that may be a mistake.
        budget_chose = share * COLLAPSE >= usual_share if num_drafted else declined
        if usual > MIN_ACCEPTED and accepted * COLLAPSE < usual and not budget_chose:
            if alarms:
                why = "see above"
            elif wrong:
                why = "the problem ids are still wrong"
            elif not num_drafted:
                why = "nothing was drafted: check the budget"
            else:
                why = (
                    "ids and index look right, so the policy in the engine is not the one that made the history: "
                    "check the weight sync, the checkpoint and the temperature"
                )
            alarms.append(f"acceptance collapsed: {accepted:.2f} tokens accepted per pass, {usual:.2f} usually; {why}")
        self.usual.append((accepted, share))
        return alarms

    def _wrong_ids(self) -> dict[str, str]:
        """Returns what is wrong with the problem ids of the rollout that ended, at most one kind, and a line about it.
        Clears the rollout's counts."""
        requests, other_prompt, other_problem = self._requests, self._other_prompt, self._other_problem
        self._requests = self._other_prompt = self._other_problem = 0
        self._prompt_tokens -= sum(_held(self._prompt_of.get(problem)) for problem in self._new_prompt_of)
        self._prompt_of |= self._new_prompt_of
        self._new_prompt_of = {}
        if 2 * other_prompt > requests:
            return {
                "mixed": f"problem ids are mixed up: {other_prompt} of {requests} requests bring an id that had "
                f"another prompt before, so drafts come from other problems' history; give each prompt its own id {KEY}"
            }
        if 2 * other_problem > requests:
            return {
                "new": f"problem ids do not repeat: {other_problem} of {requests} requests have a prompt known under "
                f"another id, so no history is ever found; give siblings and epochs of a prompt one id {KEY}"
            }
        return {}


SILENT_PASSES = 2**10  # passes in a row without a draft before the first warning; each later one comes at twice as many
HELD_BACK = 10  # the budget holds back if it lets less than one token pass for so many passes of requests
logger = logging.getLogger("das")


class SilenceWatch:
    """Counts passes in a row in which requests might have had drafts but none had, and warns."""

    def __init__(self) -> None:
        self._silent_passes = 0
        self._warn_at = SILENT_PASSES
        self._told_of_budget = False

    def end_rollout(self, passes: int, drafted: int, declined: bool) -> list[str]:
        """Note a rollout that ended on a budget that learns times. Returns, once, a line if the budget holds back.

        passes, drafted (tokens): sums over its requests. declined: whether there was a pass for which the budget cut
        everything that was drafted.
        """
        if self._told_of_budget or not declined or passes < MIN_PASSES or drafted * HELD_BACK >= passes:
            return []
        self._told_of_budget = True
        return [
            f"the budget holds back ({drafted} drafted tokens in {passes} passes of requests), because now a pass with "
            "drafts takes longer here than it saves. Other work on this machine may be why, and another run may draft "
            "more. No token changes; budget=fixed drafts whatever the clock says"
        ]

    def observe(self, requests: Sequence[LiveRequest], drafted: bool) -> None:
        """Note a pass. requests: those that emitted in the pass. drafted: whether one got a draft for the next pass."""
        if drafted:
            self._silent_passes, self._warn_at = 0, SILENT_PASSES
        elif any(request.limit > 0 for request in requests):
            self._silent_passes += 1
        if self._silent_passes == self._warn_at:
            self._warn_at *= 2
            logger.warning(
                "speculation: nothing was drafted in the last %d passes, though requests may draft: do prompts or "
                "das_problem ids ever come back? Look at drafter.window, drafter.min_prob and the budget too",
                self._silent_passes,
            )
