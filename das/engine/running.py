"""The rollout that an engine runs: it begins and ends here, whoever drafts, and whether or not it was announced. What
was learned in rollouts is kept here, too.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from vllm.distributed import get_tp_group

from das.engine.proposer import DasProposer
from das.engine.requests import Request
from das.engine.rollouts.judge import Judge
from das.engine.rollouts.meter import RolloutMeter
from das.engine.rollouts.report import Finished, Plain, RolloutReport
from das.engine.rollouts.totals import LinesInTheLog, add_to_totals
from das.engine.runner.runner import Runner
from das.engine.runner.speculator import TextDrafts
from das.engine.settings import HISTORY, LEARNED
from das.general.arrays import load_arrays, save_arrays

Responses = Mapping[Request, Finished]
KIND = "state of a proposer"  # of files of the name LEARNED


class RunningRollout:
    """The rollouts of an engine, one after the other.

    is_announced: whether the running one began by `begin`. Passes outside of announced ones form an unannounced one.
    is_evaluation: whether the training must not notice it.
    """

    def __init__(self, runner: Runner):
        self._runner, self._flights = runner, runner.flights
        self.is_announced = self.is_evaluation = False
        self._suffix: TextDrafts | None = None  # in an evaluation, vLLM's suffix drafter of the training
        self._judge = Judge()  # of vLLM's own drafters; a proposer has its own
        self._lines = LinesInTheLog()
        self._judged = [0, 0, 0]  # passes, drafted and accepted tokens of the turns so far

    def begin(self, num_requests: int, evaluation: bool = False) -> None:
        """Begin a rollout of this many requests, with new counts. evaluation: the training must not notice it."""
        self._settled()
        self.is_announced, self._judged = True, [0, 0, 0]
        self._end_evaluation()
        if evaluation:
            self._begin_evaluation()
        if (proposer := self._flights.proposer) is not None:
            proposer.begin_rollout(num_requests)

    def begin_turn(self, num_requests: int) -> None:
        """Note that the rollout goes on with a turn of this many requests."""
        self._settled()
        if (proposer := self._flights.proposer) is not None:
            proposer.begin_turn(num_requests)

    def end_turn(self) -> Plain:
        """End a turn: its responses join the history, and the window stays where it is. Returns the turn's report, and
        its responses, for `RolloutReport.from_plain` and `finished_from_plain`."""
        report, finished = self._end_requests()
        if (proposer := self._flights.proposer) is not None:
            proposer.record.forget_turn()
        return self._plain(report, finished)

    def end(self, history_tick: int) -> Plain:
        """End the rollout: the drafter's window moves as far as the caller's tick did (a step or epoch), unless it was
        an evaluation. Returns what `end_turn` returns."""
        self.is_announced, proposer = False, self._flights.proposer
        report, finished = self._end_requests()
        report = replace(report, alarms=self._alarms())
        if proposer is not None:
            drafter = proposer.draft_round.drafter
            if not self.is_evaluation:
                drafter.end_rollout(history_tick)
            proposer.end_rollout()
            report = replace(
                report,
                history_tokens=drafter.history_tokens,
                oldest_tick=drafter.oldest_tick,
                # Self-drafts state no probabilities.
                calibration_error=None if proposer.drafting_model else proposer.calibration.error,
            )
        self._end_evaluation()
        return self._plain(report, finished)

    def end_unannounced(self) -> None:
        """End an unannounced rollout, because the weights are new or because it has gone on for long.

        Requests may still run. The window moves by the number of response tokens, not by steps. For the drafter it was
        no rollout if it knew none of the requests.
        """
        meter, proposer = self._settled(), self._flights.proposer
        if not get_tp_group().is_first_rank:  # the others have no drafter that knows a request
            return
        finished = meter.finished()
        plain = meter.report(finished).plain()
        self._count(plain)
        self._sum(finished)
        tracked = [request for request in finished if not request.untracked]
        if proposer is not None:
            self._lines.add(plain)
            if not tracked:
                return
        for alarm in self._alarms():  # TRL quiets vLLM's loggers
            logging.getLogger("das").warning("speculation: %s", alarm)
        if proposer is not None:
            tokens = sum(sum(request.counts.emitted) for request in tracked)
            proposer.draft_round.drafter.end_unannounced(len(tracked), tokens)
            proposer.end_rollout()
            proposer.draft_round.budget.begin_step(0)  # nobody knows how many requests will come

    def finished(self, names: list[str]) -> list[Finished]:
        """Returns the responses so far of these requests of the running rollout or turn, in their order. names: as
        their caller named them."""
        self._flights.settle()
        meter = self._flights.meter
        known = {request.asked: request for request in meter.requests}
        return [meter.one_finished(known[name], self._noted(known[name])) for name in names]

    def save_learned(self, folder: Path) -> None:
        """Write into `folder` what drafting has learned: the history of texts, the lengths of responses, and the
        calibrated probabilities of acceptance. No request may be live. Does nothing where nothing is learned.

        The drafter then continues from the file it wrote: an index built text by text finds occurrences in another
        order than one that grew token by token, and this run must draft what a resumed run will draft. A budget is not
        saved: within a few passes it measures the running engine anew, and what those of papers learn of responses
        begins anew, too.
        """
        if (proposer := self._flights.proposer) is None:
            return
        drafter = proposer.draft_round.drafter
        drafter.save(folder / HISTORY)
        drafter.load(folder / HISTORY)
        learned = {
            **proposer.lengths.state(),
            "calibration": proposer.calibration.counts,
            "usual": np.array(proposer.judge.usual),
            "short": np.array(proposer.judge.short),
            "told_tick": np.array(drafter.told),
        }
        save_arrays(folder / LEARNED, {"kind": np.array(KIND), **learned})

    def load_learned(self, folder: Path) -> None:
        """Continue from what `save_learned` wrote, at the same history tick. Raises ValueError for files of another
        kind."""
        if (proposer := self._flights.proposer) is None:
            return
        drafter = proposer.draft_round.drafter
        drafter.load(folder / HISTORY)
        learned = load_arrays(folder / LEARNED, KIND)
        drafter.told = int(learned["told_tick"])
        proposer.lengths.restore(learned)
        proposer.calibration.counts = learned["calibration"]
        passes, drafted, accepted, declined = learned["short"].tolist()
        proposer.judge.short = passes, drafted, accepted, bool(declined)
        proposer.judge.usual.extend((accepted, share) for accepted, share in learned["usual"].reshape(-1, 2).tolist())

    def leave(self) -> None:
        """End an evaluation or a rollout that its caller left open."""
        if self.is_evaluation:
            self.end(0)
        if self.is_announced:
            self.is_announced = False
            self.end_unannounced()

    def _settled(self) -> RolloutMeter:
        """Read all passes. Returns the meter that counted them; what comes next has a new one."""
        self._flights.settle()
        meter, self._flights.meter = self._flights.meter, RolloutMeter()
        return meter

    def _end_requests(self) -> tuple[RolloutReport, Responses]:
        """End the requests of a rollout or turn. Returns its report and their responses."""
        meter, start, proposer = self._settled(), time.perf_counter(), self._flights.proposer
        if proposer is not None:
            proposer.end_live()
        meter.draft_s += time.perf_counter() - start
        finished = meter.finished(self._noted)
        self._sum(finished)
        report = meter.report(finished)
        return report if proposer is None else replace(report, **proposer.reported()), finished

    def _noted(self, request: Request) -> Plain:
        """Returns what the proposer noted about a request, as fields of Finished."""
        proposer = self._flights.proposer
        return {} if proposer is None else proposer.noted(request)

    def _plain(self, report: RolloutReport, finished: Responses) -> Plain:
        plain = report.plain()
        self._count(plain)
        return plain | {"requests": {each.name: each.plain() for each in finished.values()}}

    def _count(self, plain: Plain) -> None:
        """Add a rollout to the totals of `das run`, once for all ranks of the engine."""
        if get_tp_group().is_first_rank:
            add_to_totals(plain)

    def _sum(self, finished: Responses) -> None:
        """Keep the sums over the requests that may draft, for the judge."""
        may_draft = [each for request, each in finished.items() if request.limit > 0]
        for i, name in enumerate(("passes", "drafted", "accepted")):
            self._judged[i] += sum(getattr(each, name) for each in may_draft)

    def _alarms(self) -> list[str]:
        """Returns the alarms about the rollout that ends. An evaluation is not judged."""
        (passes, drafted, accepted), self._judged = self._judged, [0, 0, 0]
        proposer, alarms = self._flights.proposer, list[str]()
        if proposer is not None and proposer.drafting_model is not None:
            alarms += proposer.drafting_model.alarms()
        if self.is_evaluation or self._runner.vllm.speculator is None:
            return alarms
        if proposer is None:
            return alarms + self._judge.lines(passes, drafted, accepted)
        return alarms + proposer.judge.lines(passes, drafted, accepted, proposer.record.declined)

    def _begin_evaluation(self) -> None:
        self.is_evaluation, drafter = True, self._flights.drafter
        if isinstance(drafter, DasProposer):
            drafter.begin_evaluation()
        elif drafter is not None and drafter.keeps_texts:
            self._suffix, self._flights.drafter = drafter, self._runner.new_drafter()

    def _end_evaluation(self) -> None:
        self.is_evaluation = False
        if self._suffix is not None:
            self._flights.drafter, self._suffix = self._suffix, None
        if (proposer := self._flights.proposer) is not None:
            proposer.end_evaluation()
