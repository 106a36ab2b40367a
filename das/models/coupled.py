"""Coupled drafts: a drafter that is a model draws its tokens with the noise that the verifier will use.

    drafted token = argmax_v( s * log q(v) + Gumbel(seed, position)[v] )

Here q is the drafter's distribution, and s a scale. The verifier emits argmax(log p + Gumbel(seed, position)), where p
is the policy's distribution. Where q is near p, the same noise almost always chooses the same token, but the likeliest
token of q would be emitted only with probability p(token). Emitted tokens do not depend on drafts, so every s is exact
(docs/exactness.md, "Coupled drafts").

The scale is learned. For a near copy of the policy, s = 1 is best. A poor drafter is surer of its likeliest tokens
than of its other tokens, and a larger s is better for it; with s = infinity it drafts its likeliest token. Once in
LEARN_EVERY rounds, the tokens of all scales are drawn. When the pass has emitted its tokens, all scales are scored at
the same positions, so that their scores can be compared: at those whose drafted prefix was emitted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from das.budget.acceptance import TokenCalibration
from das.verify.layout import RunningBatch
from das.verify.noise import keyed_draft
from das.verify.sampler import GREEDY_BELOW

SCALES = (1.0, 1.5, 2.0, 3.0, math.inf)
LEARN_EVERY = 8  # one round in so many learns, beginning with the first
MEMORY = 2000  # scored positions that are remembered, by exponential forgetting, because policies drift
CALIBRATION_MEMORY = 1000  # tokens of a calibration bin that are remembered, in the same way
CALIBRATION_TRUST = 10  # tokens that a bin's first guess counts as; few, because nothing is known of a new drafter
NONE_DRAFTED, NONE_EMITTED = -1, -2  # stand for no token; they differ, so that they never match each other


@dataclass(slots=True)
class _Round:
    """A round of drafting. Lists and arrays have an entry for each row, except for `draws` and `others`."""

    runner: RunningBatch
    names: list[str]
    rows: np.ndarray  # index in the runner's batch, int64
    seeds: np.ndarray  # int64
    positions: np.ndarray  # position of the first token to draft, int64
    greedy: np.ndarray  # bool
    counts: np.ndarray  # bool; False for unfinished prompts, whose drafts nobody verifies
    scale: float
    learns: bool
    num_drafted: np.ndarray = field(init=False)  # int64
    # For each call of `draw`: its rows, their depths, tokens, margins and probabilities, each [rows], and the tokens of
    # all scales, [rows, scales]. In a round that does not learn, only the scale in use is there.
    draws: list[tuple[np.ndarray, ...]] = field(default_factory=list)
    others: list[tuple[int, int, int]] = field(default_factory=list)  # another drafter's tokens: (row, depth, token)

    def __post_init__(self) -> None:
        self.num_drafted = np.zeros(len(self.rows), np.int64)


class CoupledSampler:
    """Draws a drafter's tokens with the noise that the verifier will use: argmax(s * log q + Gumbel(seed, position)).

    scales: the values of s to choose from. The first one is used until another one scores better.
    The same passes lead to the same choices, so all ranks of an engine draft alike.
    """

    def __init__(self, scales: Sequence[float] = SCALES):
        if not scales or not all(scale > 0 for scale in scales):
            raise ValueError(f"scales={scales!r}: give numbers above 0; infinity drafts the likeliest token")
        self._scales = np.array(scales, np.float32)
        self._hits = np.zeros(len(scales))  # for each scale, the scored positions where it drew the emitted token
        self._used = 0  # index of the scale in use
        self._rounds = 0
        self._round: _Round | None = None
        # For each scale, a map from the winner's margin to its probability of being accepted. Greedy requests use the
        # map of infinity, because in both cases there is no noise in the margin.
        self._calibrations: dict[float, TokenCalibration] = {}
        self._check = TokenCalibration(memory=CALIBRATION_MEMORY)  # compares probabilities with what was accepted

    @property
    def scale(self) -> float:
        """The scale s in use."""
        return float(self._scales[self._used])

    @property
    def calibration_error(self) -> float:
        """The calibration error of the probabilities of acceptance that `draw` returned: 0 if they were right.

        Verified tokens are sorted into bins by probability. The error of a bin is |mean probability - accepted share|.
        This is the mean over the bins, weighted by their tokens. Old tokens are gradually forgotten.
        """
        return self._check.error

    def state(self) -> dict[str, np.ndarray]:
        """Returns the learned values, for a checkpoint. No round of drafting may be running."""
        scales = list(self._calibrations)
        counts = [self._calibrations[scale].counts for scale in scales]
        return {
            "hits": self._hits,
            "used": np.array(self._used),
            "rounds": np.array(self._rounds),
            "calibrated": np.array(scales, np.float64),
            "calibrations": np.array(counts).reshape(-1, 3, TokenCalibration.BINS),
            "check": self._check.counts.copy(),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Continue from what `state` returned. Raises ValueError if it has another number of scales."""
        if len(state["hits"]) != len(self._scales):
            raise ValueError(f"{len(state['hits'])} scales were learned, and there are {len(self._scales)}")
        self._hits, self._used, self._rounds = state["hits"], int(state["used"]), int(state["rounds"])
        self._round = None
        self._check.counts = state["check"].copy()
        self._calibrations = {}
        for scale, counts in zip(state["calibrated"].tolist(), state["calibrations"], strict=True):
            self._calibrations[scale] = TokenCalibration(CALIBRATION_TRUST, CALIBRATION_MEMORY)
            self._calibrations[scale].counts = counts.copy()

    def begin(self, runner: RunningBatch, rows: np.ndarray | None = None) -> None:
        """Begin a round of drafting. rows: rows of the runner's batch, int64 [rows]; None: all rows."""
        batch = runner.input_batch
        rows = np.arange(batch.num_reqs) if rows is None else np.asarray(rows, np.int64)
        positions = batch.num_tokens_no_spec[rows].astype(np.int64) - batch.num_prompt_tokens[rows]
        self._round = _Round(
            runner,
            names=[batch.req_ids[row] for row in rows.tolist()],
            rows=rows,
            seeds=runner.seeds_of(rows),
            positions=positions,
            greedy=batch.temperature_cpu[rows] < GREEDY_BELOW,
            counts=~runner.unfinished[rows],
            scale=self.scale,
            learns=len(self._scales) > 1 and self._rounds % LEARN_EVERY == 0,
        )
        self._rounds += 1

    def draw(self, logits: torch.Tensor, among: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Draw the next drafted token of each row. Call it once for each depth.

        logits: the drafter's unprocessed logits, float32 [rows, vocab]; changed in place. among: which rows, as indices
        into the rows of `begin`, int64 [rows]; None: all of them. Returns the tokens, int64 [rows], and the probability
        that each token is accepted if all tokens before it are, float64 [rows].
        """
        now = self._round
        assert now is not None, "draw before begin"
        among = np.arange(len(now.rows)) if among is None else np.asarray(among, np.int64)
        greedy = now.greedy[among]
        # Penalties and bad words do not count these drafted tokens: drafts may be worse for it, but not wrong.
        logits = now.runner.processed(logits.to(torch.float32), now.rows[among], now.num_drafted[among])
        scales = self._scales if now.learns else self._scales[self._used : self._used + 1]
        drawn, margins = keyed_draft(
            logits, scales, now.seeds[among], now.positions[among] + now.num_drafted[among], greedy
        )
        column = self._used if now.learns else 0
        tokens, margin = drawn[:, column], margins[:, column]
        probs = self._probabilities(now.scale, margin, greedy)
        now.draws.append((among, now.num_drafted[among], tokens, margin, probs, drawn))
        now.num_drafted[among] += 1
        return tokens, probs

    def follow(self, row: int, tokens: Sequence[int]) -> None:
        """Note the tokens that another drafter appended to a row's draft, after the tokens drawn so far.

        row: index into the rows of `begin`.
        """
        now = self._round
        assert now is not None, "follow before begin"
        for token in tokens:
            now.others.append((row, int(now.num_drafted[row]), token))
            now.num_drafted[row] += 1

    def observe(self, names: Sequence[str], tokens: Sequence[Sequence[int] | np.ndarray]) -> None:
        """Learn from the tokens that requests emitted in the pass that verified the last round's drafts.

        names: ids of the requests, in any order; requests that were not in the round are ignored. tokens: the tokens
        that each request emitted.
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
        reached = emitted != NONE_EMITTED  # positions with an emitted token whose whole drafted prefix was emitted too
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

    # ---- learning ----

    def _score(self, hits: np.ndarray) -> None:
        """Score all scales at more positions. hits: whether each drew the emitted token, bool [positions, scales]."""
        self._hits = self._hits * (1 - 1 / MEMORY) ** len(hits) + hits.sum(axis=0)
        if self._hits.max() > self._hits[self._used]:
            self._used = int(self._hits.argmax())

    def _probabilities(self, scale: float, margins: np.ndarray, greedy: np.ndarray) -> np.ndarray:
        probs = np.empty(len(margins))
        for calibration, those in self._calibrations_of(scale, greedy):
            probs[those] = calibration(squashed(margins[those]))
        return probs

    def _calibrations_of(self, scale: float, greedy: np.ndarray) -> list[tuple[TokenCalibration, np.ndarray]]:
        """Returns the maps from margins to probabilities of acceptance, each with a mask of the rows that use this map.
        greedy: bool [rows]."""
        masks = [(scale, ~greedy), (math.inf, greedy)]
        return [
            (self._calibrations.setdefault(key, TokenCalibration(CALIBRATION_TRUST, CALIBRATION_MEMORY)), mask)
            for key, mask in masks
            if mask.any()
        ]


def squashed(margins: np.ndarray) -> np.ndarray:
    """Map margins from 0..infinity to 0..1, the range that TokenCalibration takes; float64. A margin of NaN, from
    logits that are not finite, counts as 0.
    """
    return 1 - 1 / (1 + np.nan_to_num(margins.astype(np.float64), nan=0.0, posinf=np.inf))
