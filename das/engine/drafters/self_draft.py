"""Self-drafts: the policy's own weights, quantized anew whenever they change, draft for the policy.

EfficientRollout's drafter (arXiv 2606.18967, section 3), with tokens drawn by the verifier's own noise
(das/engine/coupled.py). It needs no training and no KV cache of its own: it reads the policy's. It drafts alone, or
behind what the history drafts (arm das_self).
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from das.budget.draft_price import DraftPassPrice, DraftWork
from das.drafter import Drafts, HistoryDrafter, TreeDrafts
from das.engine.coupled import CoupledSampler
from das.engine.drafters.draft_passes import DraftPasses
from das.engine.drafters.hybrid import Chains
from das.engine.drafters.quantized import QuantizedLayers

logger = logging.getLogger("vllm.das")
BROKEN = "the self-draft computed values that are not finite; it drafts nothing until new weights come"


class SelfDrafter:
    """Drafts chains for the requests of one engine.

    weights   the format of the drafting weights: one of das.engine.drafters.quantized.FORMATS
    passes    the most passes that draft for one target pass; None: any number
    worth     seconds that one more emitted token saves; nan while nobody knows
    history   drafts first, where it is sure enough; None: nothing does

    A depth of drafts is computed for all requests at once, as long as its tokens are expected to save more time than
    the pass takes.
    """

    def __init__(
        self, weights: str, passes: int | None, worth: Callable[[], float], history: HistoryDrafter | None = None
    ):
        self.weights = weights
        self.most_passes = passes
        self.worth = worth
        self.history = history
        self.window = 0 if history is None else history.window
        self.price = DraftPassPrice()
        self.sampler = CoupledSampler()
        self._passes_made: list[tuple[int, float]] = []  # rows and seconds of each pass of the last drafts
        self._requantize_s = 0.0  # before the last drafts
        self._runner: Any = None
        self._passes: DraftPasses
        self._layers: QuantizedLayers
        self._quantized: int | None = None  # the version of the policy's weights that the layers were made from
        self._broken: int | None = None  # the version whose layers compute values that are not finite
        self._usual = 1.0  # probability with which a drafted token is usually accepted
        self._tick = 0  # without a history
        self._alarms: list[str] = []

    # ---- what DraftRound calls ----

    @property
    def history_tick(self) -> int:
        """The history's tick."""
        return self._tick if self.history is None else self.history.history_tick

    @property
    def history_tokens(self) -> int:
        """Response tokens in the history."""
        return 0 if self.history is None else self.history.history_tokens

    def begin(self, request: str, problem: str, prompt: Sequence[int] | np.ndarray) -> None:
        """A request joins the batch."""
        if self.history is not None:
            self.history.begin(request, problem, prompt)

    def observe(self, request: str, tokens: Sequence[int] | np.ndarray) -> None:
        """Tokens that a request brings along."""
        if self.history is not None:
            self.history.observe(request, tokens)

    def observe_batch(self, requests: Sequence[str], tokens: Sequence[Sequence[int] | np.ndarray]) -> None:
        """What the requests emitted in the pass that verified the last drafts."""
        self.sampler.observe(requests, [list(new) for new in tokens])
        if self.history is not None:
            self.history.observe_batch(requests, tokens)

    def propose_batch(
        self, requests: Sequence[str], limits: Sequence[int], floors: Sequence[float] | None = None
    ) -> Drafts:
        """Drafts of at most limits[i] tokens. floors: a draft ends where the probability that all of it is accepted
        falls below floors[i]."""
        self._passes_made, self._requantize_s = [], 0.0
        chains = Chains(limits, floors)
        every = np.arange(len(requests))
        if self.history is not None:
            chains.take(every, self.history.propose_batch(requests, limits, floors))
        if self._broken != self._runner.das_weights_version:
            self._draft(requests, chains)
            if self._broken is not None and self._broken == self._quantized:  # it broke just now
                chains.drop()
                if self.history is not None:
                    chains.take(every, self.history.propose_batch(requests, limits, floors))
        return chains.drafts()

    def propose_tree(
        self,
        requests: Sequence[str],
        nodes: Sequence[int],
        floors: Sequence[float] | None = None,
        branch_floor: float = 0.0,
    ) -> TreeDrafts:
        """Self-drafts do not branch, and das.engine.build refuses engines that ask for it."""
        raise NotImplementedError("self-drafts do not branch")

    def end(self, request: str, keep: bool = True) -> None:
        """A request finished."""
        if self.history is not None:
            self.history.end(request, keep)

    def end_step(self, history_tick: int) -> None:
        """Move the history's window."""
        self._tick = history_tick
        self.sampler.observe((), ())  # what was drafted last belongs to requests that are over
        if self.history is not None:
            self.history.end_step(history_tick)

    def save(self, path: Path) -> None:
        """Write the history. What was learned of acceptance and prices is learned again within a few passes."""
        if self.history is not None:
            self.history.save(path)

    def load(self, path: Path) -> None:
        """Read the history."""
        if self.history is not None:
            self.history.load(path)

    # ---- drafting ----

    def attach(self, runner: Any) -> None:
        """Draft in this model runner, whose KV cache is made. Called before every round of drafts."""
        if self._runner is runner:
            return
        self._runner = runner
        longest = int(runner.vllm_config.speculative_config.num_speculative_tokens)
        self._passes = DraftPasses(runner, runner.das_draft_blocks, longest)
        self._layers = QuantizedLayers(runner.get_model(), self.weights)

    def handed_out(self) -> DraftWork:
        """What the last round of drafts took. It is handed out once, because a later round may make no drafts."""
        drafting = DraftWork(self._passes_made, self._requantize_s)
        self._passes_made, self._requantize_s = [], 0.0
        return drafting

    def alarms(self) -> list[str]:
        """What went wrong since the last call."""
        alarms, self._alarms = self._alarms, []
        return alarms

    @torch.inference_mode()
    def _draft(self, requests: Sequence[str], chains: Chains) -> None:
        """Let the model and the history lengthen the chains in turn."""
        runner = self._runner
        self._requantize()
        batch = runner.input_batch
        rows = np.array([batch.req_id_to_index[name] for name in requests], np.int64)
        last = batch.token_ids_cpu[rows, batch.num_tokens_no_spec[rows] - 1].tolist()
        sure, _, _ = chains.behind(np.arange(len(requests)))
        pending = [[token, *own] for token, own in zip(last, sure, strict=True)]  # what the next pass must compute
        begun = False
        while True:
            among, gain = chains.open(self._usual)
            if not len(among) or len(self._passes_made) == self.most_passes:
                return
            num_rows = sum(len(pending[i]) for i in among.tolist())
            worth = self.worth()
            if not math.isnan(worth) and gain * worth < self.price.seconds(num_rows):
                self.price.fade()
                return
            start = time.perf_counter()
            if not begun:
                self._passes.begin(rows)
                self.sampler.begin(runner, rows)
                for i, own in enumerate(sure):
                    self.sampler.follow(i, own)
                begun = True
            with self._layers.used():
                hidden = self._passes.run(among, [pending[i] for i in among.tolist()])
            if not bool(torch.isfinite(hidden).all()):
                self._give_up()
                return
            drawn, likely = self.sampler.draw(runner.model.compute_logits(hidden).float(), among)
            chains.append(among, drawn, likely)
            self._usual += 0.02 * (float(likely.mean()) - self._usual)
            for i, token in zip(among.tolist(), drawn.tolist(), strict=True):
                pending[i] = [token]
            if self.history is not None:
                self._ask_history(requests, chains, among, pending)
            seconds = time.perf_counter() - start
            runner.das_meter.record_draft_pass(num_rows, seconds)
            self._passes_made.append((num_rows, seconds))
            self.price.observe(num_rows, seconds)

    def _ask_history(
        self, requests: Sequence[str], chains: Chains, among: np.ndarray, pending: list[list[int]]
    ) -> None:
        """Let the history lengthen these chains behind what the model drafted."""
        assert self.history is not None
        tokens, room, floors = chains.behind(among)
        drafts = self.history.propose_behind([requests[i] for i in among.tolist()], tokens, room, floors)
        for i, taken in zip(among.tolist(), chains.take(among, drafts), strict=True):
            self.sampler.follow(i, taken)
            pending[i] += taken

    def _requantize(self) -> None:
        """Quantize the policy's weights if they are not those that were quantized last."""
        version: int = self._runner.das_weights_version
        if self._quantized == version:
            return
        start = time.perf_counter()
        self._layers.make()
        self._quantized = version
        self._requantize_s = time.perf_counter() - start
        self._runner.das_meter.requantize_s += self._requantize_s

    def _give_up(self) -> None:
        """The drafting weights are broken: draft with them no more."""
        self._broken = self._quantized
        self._alarms.append(BROKEN)
        logger.error("speculation: %s", BROKEN)
        self._passes.forget()
