"""Finished responses, and the report of a rollout. The engine makes both, and nobody changes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

Plain = dict[str, Any]  # what RPC and JSON can carry: fields by their names, without those that are UNKNOWN
UNKNOWN: tuple[Any, ...] = (None, ())  # values of fields that the engine does not know


@dataclass(frozen=True)
class Finished:
    """A finished response, and what it cost. The engine's worker makes it (RolloutMeter.finished), and `answered` adds
    what vLLM's front end alone knows. The trainer's rows, histories and run folders are made of it."""

    passes: int  # target passes that emitted at least one token
    drafted: int  # draft tokens verified
    first_s: float = 0.0  # when its first token came, in seconds since the rollout began
    last_s: float = 0.0  # when its last token came
    name: str | None = None  # the request's id, as its caller gave it
    problem: str | None = None
    tokens: Sequence[int] = ()  # ids
    logprobs: Sequence[float | None] | None = None  # of the tokens; None: unknown
    finish_reason: str | None = None
    predicted_length: float | None = None  # in tokens, predicted when the request began
    engine: int | None = None  # the engine of a cluster that delivered it
    turns: Sequence[int] | None = None  # tokens of each turn, in a rollout of several turns
    weights: int | None = None  # number of updates that the weights had seen; only the trainer knows this
    rank: int | None = None  # the trainer's rank that asked for it, in a rollout of several ranks
    distributions: str | None = None  # of its tokens (Distributions.text), if the drafter remembers them
    seed: int | None = None  # of the noise with which these tokens were sampled; None: unknown, or there is no noise
    # Tokens of the response that each of its passes emitted, of which all but the last were drafted; None: nothing was
    # drafted, or it is unknown.
    emitted: Sequence[int] | None = None

    @property
    def accepted(self) -> int:
        """The drafted tokens that became tokens of the response: each pass emits one token more than it accepts."""
        return 0 if self.emitted is None else sum(self.emitted) - self.passes

    def cut(self, tokens: int) -> Self:
        """Returns the costs without what lies behind the response's end: tokens of its last pass, and further passes.
        tokens: of the response."""
        if self.emitted is None:
            return replace(self, passes=min(self.passes, max(tokens, 1)))
        emitted, behind = list(self.emitted), sum(self.emitted) - tokens
        while len(emitted) > 1 and behind >= emitted[-1]:
            behind -= emitted.pop()
        emitted[-1] -= behind
        return replace(self, passes=self.passes - len(self.emitted) + len(emitted), emitted=emitted)

    def answered(self, problem: str, output: Any) -> Self:
        """Returns the whole response. output: vLLM's CompletionOutput, which knows the end that a stop string makes,
        and all tokens of an engine that drafts nothing."""
        tokens, reason = list(output.token_ids), str(output.finish_reason)
        # An engine without drafts knows no tokens, and a scheduler may plan one pass too many.
        return replace(self.cut(len(tokens)), problem=problem, tokens=tokens, finish_reason=reason)

    def plain(self) -> Plain:
        """Returns the response as a Plain dictionary, without fields that are unknown."""
        return _known(self)


@dataclass(frozen=True)
class ClusterReport:
    """The costs of a cluster that no report of its engines contains (names: docs/reference.md)."""

    engines: int
    lost_requests: int
    restarts: int  # engines that were started again
    handover_us_per_token: float  # processor time of the training process to receive them, in microseconds per token
    history_bytes: int
    by_engine: Mapping[str, Mapping[str, Any]]

    def plain(self) -> Plain:
        """Returns the report as a Plain dictionary: the entry `cluster` of metrics.jsonl."""
        return dict(vars(self))

    def followed_by(self, turn: "ClusterReport") -> "ClusterReport":
        """Returns the report of this and a further turn of the rollout: counts are added, the rest is the turn's."""
        counts = ("lost_requests", "restarts")
        return replace(turn, **{name: getattr(self, name) + getattr(turn, name) for name in counts})


@dataclass(frozen=True)
class RolloutReport:
    """The costs of a rollout, or of one turn of it, on an engine. `merged` and `added` make one report of several.

    Counts are sums over requests or passes. A field that the engine does not know keeps its default.
    """

    passes: int = 0  # target passes of each request that emitted a token
    drafted: int = 0  # draft tokens verified
    accepted: int = 0  # drafted tokens that became tokens of responses: emitted tokens, less passes
    draft_rounds: int = 0  # passes of each request that verified a draft token or more
    undrafted_rows: int = 0  # rows that vLLM's asynchronous scheduler planned for drafts, and nobody drafted
    launched_ahead: int = 0  # passes that were launched before their drafts were known
    draft_s: float = 0.0  # seconds of drafting and bookkeeping; draft_pass_s and requantize_s are part of it
    draft_passes: int = 0  # passes of a draft model
    draft_rows: int = 0  # rows that these passes computed
    draft_pass_s: float = 0.0  # seconds that these passes took
    requantize_s: float = 0.0  # seconds in which a self-draft quantized the policy's weights
    decode_steps: int = 0  # passes of the engine
    tail_steps: int = 0  # passes of the engine with few requests
    history_tokens: int = 0  # tokens in the drafter's history once the rollout was over
    oldest_tick: int | None = None  # the oldest one in the window of the drafter's history, then
    calibration_error: float | None = None  # error of the probabilities that the drafter gives to its tokens
    alarms: Sequence[str] = ()  # a line for each thing that is wrong with speculation
    # One number for each pass of the engine:
    step_time_s: Sequence[float] = ()  # when it ended, since the rollout began
    step_live: Sequence[int] = ()  # its requests
    step_tokens: Sequence[int] = ()  # rows of logits sampled: requests + drafted tokens
    step_emitted: Sequence[int] = ()  # tokens of responses that it emitted
    # One number for each decode pass (a pass in which no request brought a prompt):
    pass_predicted_s: Sequence[float] = ()  # the time that the budget expected
    pass_measured_s: Sequence[float] = ()  # the time that it took
    traces: Mapping[str, Sequence[float]] = field(default_factory=dict)  # of the budget (BudgetPolicy.trace)
    cluster: ClusterReport | None = None
    engines: Sequence[Mapping[str, Any]] = ()  # events of the engines of a cluster, and their times

    def of_requests(self, finished: Sequence[Finished]) -> Self:
        """Returns the report with the counts of these requests' responses."""
        counts = {name: sum(getattr(each, name) for each in finished) for name in ("passes", "drafted", "accepted")}
        return replace(self, **counts)

    def timeline(self) -> dict[str, Sequence[float]]:
        """Returns the lists that have a number for each pass, by their names in timeline files (docs/reference.md)."""
        of_passes = {name: value for name, value in _known(self).items() if name.startswith(("step_", "pass_"))}
        return {**of_passes, **self.traces}

    def plain(self) -> Plain:
        """Returns the report as a Plain dictionary."""
        values = _known(self)
        if self.cluster is not None:
            values["cluster"] = self.cluster.plain()
        return values

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Make the report from its plain form, which may have further entries."""
        values = {name: plain[name] for name in cls.__dataclass_fields__ if name in plain}
        if "cluster" in values:
            values["cluster"] = ClusterReport(**values["cluster"])
        return cls(**values)


def sentence(plain: Mapping[str, Any]) -> str:
    """Return a sentence that says whether a rollout's drafts went well: the share of accepted tokens and the passes
    that they saved. plain: the result of das_end_turn or das_end_rollout.
    """
    passes, drafted = int(plain.get("passes", 0)), int(plain.get("drafted", 0))
    accepted = int(plain.get("accepted", 0))
    if not drafted:
        return f"das: nothing was drafted in {passes} passes; drafts need text that comes again"
    return (
        f"das: {accepted} of {drafted} drafted tokens were accepted ({accepted / drafted:.0%}); {passes} passes in "
        f"place of {passes + accepted}, {accepted / max(1, passes + accepted):.0%} saved"
    )


def finished_from_plain(plain: Mapping[str, Any]) -> dict[str, Finished]:
    """Returns what the worker knows of each response, by the request's id. plain: the result of das_end_turn or
    das_end_rollout."""
    return {name: Finished(**each) for name, each in plain["requests"].items()}


# Numbers that are summed over engines.
COUNTS = (
    *("passes", "drafted", "accepted", "draft_rounds", "undrafted_rows", "launched_ahead"),
    *("draft_passes", "draft_rows", "decode_steps", "tail_steps", "history_tokens"),
)


def merged(reports: Mapping[str, RolloutReport], slowest: str) -> RolloutReport:
    """Make one report of a rollout on several engines.

    Counts are summed. The timeline of passes and the times are those of the slowest engine, for which the others wait.
    The calibration error is the largest one. Alarms name their engine.

    reports: name of an engine, such as "rank 0" -> its report. slowest: the slowest engine's name.
    """
    errors = [report.calibration_error for report in reports.values() if report.calibration_error is not None]
    return replace(
        reports[slowest],
        **{name: sum(getattr(report, name) for report in reports.values()) for name in COUNTS},
        calibration_error=max(errors, default=None),
        alarms=[f"{name}: {alarm}" for name, report in reports.items() for alarm in report.alarms],
    )


def of_engines(reports: Mapping[int, RolloutReport]) -> RolloutReport:
    """Merge the reports of a cluster's engines into one. reports: an engine's number -> its report."""
    named = {f"engine {number}": report for number, report in reports.items()}
    return merged(named, max(named, key=lambda name: max(named[name].step_time_s, default=0.0)))


# What is of a moment, and no sum over turns.
STATES = ("history_tokens", "oldest_tick", "calibration_error")


def added(first: RolloutReport, later: RolloutReport) -> RolloutReport:
    """Make one report of two turns of a rollout: counts and seconds are added, lists are joined, and of STATES the
    later one counts."""
    values = {}
    for name, later_value in vars(later).items():
        value = getattr(first, name)
        if value in UNKNOWN or later_value in UNKNOWN:
            values[name] = later_value if value in UNKNOWN else value
        elif name in STATES:
            values[name] = later_value
        elif isinstance(value, Mapping):
            values[name] = {key: [*value.get(key, ()), *later_value.get(key, ())] for key in value | later_value}
        elif isinstance(value, Sequence):
            values[name] = [*value, *later_value]
        elif isinstance(value, ClusterReport):
            values[name] = value.followed_by(later_value)
        else:
            values[name] = value + later_value
    return RolloutReport(**values)


def _known(costs: "Finished | RolloutReport") -> Plain:
    return {name: value for name, value in vars(costs).items() if value not in UNKNOWN}
