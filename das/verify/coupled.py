"""Coupled drafts: a drafter that is a model draws its tokens with the noise that the verifier will use.

    drafted token = argmax_v( s * log q(v) + Gumbel(seed, position)[v] )

The verifier emits argmax(log p + Gumbel(seed, position)). Where q is near p, the same noise almost always chooses the
same token; the likeliest token of q would be the emitted one only with probability p(token). Emitted tokens do not
depend on drafts, so every s is exact (docs/exactness.md, "Coupled drafts").

s is learned. A near copy of the policy is best at s = 1. A poor drafter is surer of its likeliest tokens than of its
other ones, and gains by a larger s; s = infinity drafts its likeliest token. In one round of LEARN_EVERY the token of
every scale is drawn. When the pass has emitted its tokens, every scale is scored at each position whose drafted prefix
was emitted: all scales at the same positions, so that their scores can be compared.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from das.budget.acceptance import TokenCalibration
from das.verify.batch import RunningBatch
from das.verify.noise import keyed_draft
from das.verify.sampling_parameters import GREEDY_BELOW, Rows

SCALES = (1.0, 1.5, 2.0, 3.0, math.inf)
LEARN_EVERY = 8  # rounds; the first one learns
MEMORY = 2000  # scored positions that are remembered, by exponential forgetting, because policies drift
CALIBRATION_MEMORY = 1000  # tokens of a bin; the same
CALIBRATION_TRUST = 10  # tokens for which a bin's first guess counts: nothing is known of a drafter before
NONE_DRAFTED, NONE_EMITTED = -1, -2  # cells without a token; they never equal


@dataclass(slots=True)
class _DraftRows:
    """The rows of one depth, as `Rows` wants them (das/verify/layout.py: RowLayout)."""

    owner: np.ndarray
    tokens: list[list[int]]  # before each row, behind the output that the batch knows

    @property
    def offset(self) -> np.ndarray:
        return np.array([len(before) for before in self.tokens], np.int64)

    def before(self) -> list[list[int]]:
        return self.tokens


@dataclass(slots=True)
class _Round:
    """A round of drafting. All lists and arrays but the draws are of its rows."""

    runner: RunningBatch
    names: list[str]
    rows: np.ndarray  # in the runner's batch, int64
    seeds: np.ndarray  # int64
    positions: np.ndarray  # of the first token to draft, int64
    greedy: np.ndarray  # bool
    counts: np.ndarray  # bool; False for unfinished prompts, whose drafts nobody verifies
    unknown: list[list[int]]  # tokens that were emitted and that the batch does not know yet, then the drafted ones
    scale: float
    learns: bool
    num_drafted: np.ndarray = field(init=False)  # int64
    # Each draw has its rows, their depths, tokens [rows], margins [rows], probabilities [rows], and tokens [rows,
    # scales]: of every scale in a round that learns, else of the one in use.
    draws: list[tuple[np.ndarray, ...]] = field(default_factory=list)
    others: list[tuple[int, int, int]] = field(default_factory=list)  # row, depth, token of another drafter

    def __post_init__(self) -> None:
        self.num_drafted = np.zeros(len(self.rows), np.int64)


class CoupledSampler:
    """Draws a drafter's tokens with the noise that the verifier will use: argmax(s * log q + Gumbel(seed, position)).

    scales: the s to choose from; the first is used until another one is better. A single one is used for ever.
    Given the same passes it does the same, so that all ranks of an engine draft alike.
    """

    def __init__(self, scales: Sequence[float] = SCALES):
        if not scales or not all(scale > 0 for scale in scales):
            raise ValueError(f"scales={scales!r}: give numbers above 0; infinity drafts the likeliest token")
        self._scales = np.array(scales, np.float32)
        self._hits = np.zeros(len(scales))  # of the scored positions, those where this scale drew the emitted token
        self.num_scored = 0.0  # positions at which the scales were scored, as far as they are remembered
        self._used = 0  # index of the scale in use
        self._rounds = 0
        self._round: _Round | None = None
        # From the winner's margin to the probability. A scale of infinity has a margin without noise, and so has a
        # greedy request at any scale.
        self._calibrations: dict[float, TokenCalibration] = {}
        self._check = TokenCalibration(memory=CALIBRATION_MEMORY)  # of the probabilities

    @property
    def scale(self) -> float:
        """The scale in use."""
        return float(self._scales[self._used])

    @property
    def calibration_error(self) -> float:
        """Mean of |probability - accepted share of its bin| over the drafted tokens that were verified, of those that
        are remembered. Each probability was given before its token was verified.
        """
        return self._check.error

    def state(self) -> dict[str, np.ndarray]:
        """The learned values, for a checkpoint. No round may be running."""
        scales = list(self._calibrations)
        counts = [self._calibrations[scale].counts for scale in scales]
        return {
            "hits": self._hits,
            "num_scored": np.array(self.num_scored),
            "used": np.array(self._used),
            "rounds": np.array(self._rounds),
            "calibrated": np.array(scales, np.float64),
            "calibrations": np.array(counts).reshape(-1, 3, TokenCalibration.BINS),
            "check": self._check.counts.copy(),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` returned, with the same scales. Raises ValueError for others."""
        if len(state["hits"]) != len(self._scales):
            raise ValueError(f"{len(state['hits'])} scales were learned, and there are {len(self._scales)}")
        self._hits, self.num_scored = state["hits"], float(state["num_scored"])
        self._used, self._rounds, self._round = int(state["used"]), int(state["rounds"]), None
        self._check.counts = state["check"].copy()
        self._calibrations = {}
        for scale, counts in zip(state["calibrated"].tolist(), state["calibrations"], strict=True):
            self._calibrations[scale] = TokenCalibration(CALIBRATION_TRUST, CALIBRATION_MEMORY)
            self._calibrations[scale].counts = counts.copy()

    def begin(
        self,
        runner: RunningBatch,
        rows: np.ndarray | None = None,
        emitted: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """A round of drafting begins for these rows of the runner's batch, int64 [rows]; None: for all.

        emitted: what each row emitted in the pass that just ran, where the batch does not know it yet; None: it does.
        """
        batch = runner.input_batch
        rows = np.arange(batch.num_reqs) if rows is None else np.asarray(rows, np.int64)
        unknown = [[] for _ in rows] if emitted is None else [list(tokens) for tokens in emitted]
        positions = batch.num_tokens_no_spec[rows].astype(np.int64) - batch.num_prompt_tokens[rows]
        positions += np.array([len(tokens) for tokens in unknown], np.int64)
        self._round = _Round(
            runner,
            names=[batch.req_ids[row] for row in rows.tolist()],
            rows=rows,
            seeds=runner.sampler.seeds.of_batch(runner)[rows],
            positions=positions,
            greedy=batch.temperature_cpu[rows] < GREEDY_BELOW,
            counts=~runner.unfinished[rows],
            unknown=unknown,
            scale=self.scale,
            learns=len(self._scales) > 1 and self._rounds % LEARN_EVERY == 0,
        )
        self._rounds += 1

    def draw(self, logits: torch.Tensor, among: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The next drafted token of each row, int64 [rows], and its probability of being accepted if the tokens before
        it were, float64 [rows]. Call it once for each depth.

        logits: float32 [rows, vocab], the drafter's, unprocessed; changed in place. among: the rows, as indices into
        those that began, int64 [rows]; None: all of them. Raises UnsupportedSampling.
        """
        now = self._round
        assert now is not None, "draw before begin"
        among = np.arange(len(now.rows)) if among is None else np.asarray(among, np.int64)
        greedy = now.greedy[among]
        logits = self._processed(now, logits, among)
        scales = self._scales if now.learns else self._scales[self._used : self._used + 1]
        drawn, margins = keyed_draft(
            logits, scales, now.seeds[among], now.positions[among] + now.num_drafted[among], greedy
        )
        column = self._used if now.learns else 0
        tokens, margin = drawn[:, column], margins[:, column]
        probs = self._probabilities(now.scale, margin, greedy)
        now.draws.append((among, now.num_drafted[among], tokens, margin, probs, drawn))
        now.num_drafted[among] += 1
        for row, token in zip(among.tolist(), tokens.tolist(), strict=True):
            now.unknown[row].append(token)
        return tokens, probs

    def follow(self, row: int, tokens: Sequence[int]) -> None:
        """Another drafter has drafted these tokens of a row behind those drawn so far.

        row: as an index into those that began.
        """
        now = self._round
        assert now is not None, "follow before begin"
        for token in tokens:
            now.others.append((row, int(now.num_drafted[row]), token))
            now.unknown[row].append(token)
            now.num_drafted[row] += 1

    def observe(self, names: Sequence[str], tokens: Sequence[Sequence[int]]) -> None:
        """Learn from what requests emitted in the pass that verified the drafts of the last round.

        names: ids of the requests, in any order; those that were not in the round are ignored. tokens: of each.
        """
        now, self._round = self._round, None
        if now is None or not now.draws:
            return
        depth = int(now.num_drafted.max())
        emitted = np.full((len(now.rows), depth), NONE_EMITTED, np.int64)
        place = {name: row for row, name in enumerate(now.names) if now.counts[row]}
        for name, own in zip(names, tokens, strict=True):
            if name in place:
                emitted[place[name], : len(own)] = own[:depth]
        drafted = np.full_like(emitted, NONE_DRAFTED)
        for among, depths, drawn, *_ in now.draws:
            drafted[among, depths] = drawn
        for row, at, token in now.others:
            drafted[row, at] = token
        reached = emitted != NONE_EMITTED  # positions whose drafted prefix was emitted, with the token emitted there
        reached[:, 1:] &= np.logical_and.accumulate(drafted == emitted, axis=1)[:, :-1]
        for among, depths, drawn, margins, probs, of_scales in now.draws:
            usable = reached[among, depths]
            if not usable.any():
                continue
            truth, greedy = emitted[among, depths][usable], now.greedy[among][usable]
            accepted = drawn[usable] == truth
            self._check.observe_tokens(probs[usable], accepted)
            for calibration, those in self._calibrations_of(now.scale, greedy):
                calibration.observe_tokens(squashed(margins[usable][those]), accepted[those])
            if now.learns:
                self._score(of_scales[usable][~greedy] == truth[~greedy, None])

    def _processed(self, now: _Round, logits: torch.Tensor, among: np.ndarray) -> torch.Tensor:
        """The logits with each request's sampling parameters applied, as the verifier will apply them."""
        runner, metadata = now.runner, now.runner.input_batch.sampling_metadata
        num_requests = runner.input_batch.num_reqs
        logits = logits.to(torch.float32)
        layout = _DraftRows(now.rows[among], [now.unknown[row] for row in among.tolist()])
        rows = Rows(metadata, num_requests, layout, runner.sampler.forbidden_tokens(runner, logits))
        logits = rows.apply_before_temperature(logits)
        if metadata.all_greedy:
            return logits
        temperature = runner.input_batch.temperature_cpu[:num_requests]
        return rows.apply_after_temperature(
            logits, temperature, None if metadata.all_random else temperature < GREEDY_BELOW
        )

    # ---- learning ----

    def _score(self, hits: np.ndarray) -> None:
        """Score every scale at more positions. hits: bool [positions, scales]."""
        keep = (1 - 1 / MEMORY) ** len(hits)
        self._hits = self._hits * keep + hits.sum(axis=0)
        self.num_scored = self.num_scored * keep + len(hits)
        if self._hits.max() > self._hits[self._used]:
            self._used = int(self._hits.argmax())

    def _probabilities(self, scale: float, margins: np.ndarray, greedy: np.ndarray) -> np.ndarray:
        probs = np.empty(len(margins))
        for calibration, those in self._calibrations_of(scale, greedy):
            probs[those] = calibration(squashed(margins[those]))
        return probs

    def _calibrations_of(self, scale: float, greedy: np.ndarray) -> list[tuple[TokenCalibration, np.ndarray]]:
        """The maps from margins to probabilities, each with a mask of its rows. greedy: of each row."""
        masks = [(scale, ~greedy), (math.inf, greedy)]
        return [
            (self._calibrations.setdefault(key, TokenCalibration(CALIBRATION_TRUST, CALIBRATION_MEMORY)), mask)
            for key, mask in masks
            if mask.any()
        ]


def squashed(margins: np.ndarray) -> np.ndarray:
    """Margins from 0 to infinity as numbers from 0 to 1, as TokenCalibration wants them; float64. Logits that are not
    finite have no margin, which counts as 0.
    """
    return 1 - 1 / (1 + np.nan_to_num(margins.astype(np.float64), nan=0.0, posinf=np.inf))
