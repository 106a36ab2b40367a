"""TRL's generation backend on engines of das.

It gives requests their seeds and problem ids, and saves its state. Engines run in one of three places, each with a
file in das/trl/engines: in this process, on a cluster, on a server.

Of a rollout the trainer calls `announce`, then TRL calls `sync_weights` and `generate`. TRL's own `generate` makes
prompts and sampling parameters, and calls `llm.generate`, which arrives in `answer`. It lets the engines roll out.
All other calls of the engine, such as those of a user's callback, reach vLLM as they are.
"""

import copy
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from trl.generation.vllm_generation import VLLMGeneration

from das.budget.lengths import LongestFirst
from das.cluster.connection import ClusterSettings
from das.engine.build import build_engine
from das.engine.rollouts.rollout import Rollout, RolloutRequest, request_seed
from das.engine.settings import EngineSettings
from das.general import ranks
from das.general.arrays import load_arrays, save_arrays
from das.general.errors import EngineError, WeightSyncError
from das.trl.conversations import Turn, conversation_rows, joined
from das.trl.dataset_rows import history_tick, problem_id
from das.trl.engines import Engines, NewWeights, TrainedHead
from das.trl.engines.cluster import ClusterEngines
from das.trl.engines.in_process import DasEngine, start_in_process
from das.trl.lag import FinishedRollout, Rows, Sync
from das.trl.support import dtype_note, embedding_problem, unsupported
from das.weights.weight_check import WeightSample, check_together, fingerprint, whole

STATE = "generation.npz"


class SpeculativeGeneration(VLLMGeneration):
    """Rolls out on `engines`, with keyed verification and drafts. Call `announce` before each `generate`.

    Seeds depend on the step and the response's place in it alone. So tokens, rewards, losses and weights are equal, bit
    for bit, wherever the engines run and however many there are.
    """

    engines: Engines
    tp_group: Any = None  # the ranks that ask together; None: all
    head: TrainedHead | None = None  # a drafter that is trained beside the policy; its trainer sets it

    def __init__(
        self,
        *args: Any,
        engine: EngineSettings,
        history_unit: str,
        cluster: ClusterSettings | None = None,
        schedule: LongestFirst | None = None,
        **kwargs: Any,
    ):
        """engine: settings of the engine. history_unit: the unit of the drafter's window, "epoch" or "step". cluster:
        settings of engines on Ray; None: the engine is TRL's server or runs in this process, as TRL's `mode` says.
        schedule: the order in which requests are handed to the engine; None keeps TRL's. args, kwargs: those of TRL's
        VLLMGeneration.

        Raises EngineError for arguments of TRL that das does not support.
        """
        if problem := unsupported(kwargs["model"], kwargs["accelerator"]):
            raise EngineError(problem)
        self._here = threading.local()  # of each thread: whether a rollout is announced, and whether TRL generates it
        self.engine = engine
        self.history_unit = history_unit
        self.cluster = cluster
        self.schedule = schedule
        self.run_seed = 0
        self.step = 0
        self.evaluation = False
        self.problems: Sequence[str] = ()
        self.several_turns = False  # whether the announced rollout is over at `finish_turns` only
        self._turns: list[Turn] = []  # finished turns of the running rollout
        self.rollouts = 0  # number of the training's rollouts so far, including the one announced last
        self.history_tick = 0  # the tick to which the drafter's window moves once that rollout is over
        self.last: Rollout | None = None
        self._counted_in = (0, False)  # step and evaluation flag that `_requests` belongs to
        self._requests = 0  # responses of that step so far, over all processes
        self._first = 0  # the place, among these, of this engine's first response in the running rollout
        self._asked: Sequence[str] = ()  # problems of all ranks whose prompts TRL gathers with this rank's
        self.weight_sample = WeightSample(engine.weight_check_every)
        self.sync = Sync()  # how the engines got their present weights
        self._held: tuple[int, ...] | None = None  # fingerprint of the weights that the engines have
        self._is_current = False  # whether the announced rollout has the weights that it must have
        super().__init__(*args, **kwargs)

    def _init_vllm(self) -> None:
        if self.cluster is not None:
            self.engines = ClusterEngines(self.cluster, self.engine, self)
        elif self.mode == "server":
            from das.trl.engines.server import ServerEngine  # here, because few need its clients

            self.engines = ServerEngine(self, self.engine.method)
        else:
            self.engines = start_in_process(self, self.engine, self.build_engine)
        if problem := embedding_problem(self.model, self.engines.policy):
            raise EngineError(problem)
        if note := dtype_note(self.accelerator.mixed_precision, self.engines.policy):
            warnings.warn(note, RuntimeWarning, stacklevel=2)

    @property
    def llm(self) -> Any:
        """The engine, by TRL's name. While TRL generates an announced rollout, it sees one that calls `answer`."""
        return self.engines.seen_by_trl(self.answer) if getattr(self._here, "generates", False) else self.engines.llm

    @property
    def vllm_client(self) -> Any:
        """The client of a server, by TRL's name; on the main rank alone. See `llm`."""
        if self.mode != "server":
            raise AttributeError(f"vllm_mode={self.mode!r} has no vllm_client")
        return self.llm

    def build_engine(self, **overrides: Any) -> DasEngine:
        """Build this rank's engine, in this process. overrides: further arguments of vllm.LLM."""
        return DasEngine(build_engine(self.engine, **overrides))

    def announce(self, trainer: Any, rows: Sequence[Mapping[str, Any]], step: int | None = None) -> None:
        """Note that the trainer is about to generate a response for each of `rows`, which TRL does not tell its
        backend.

        The trainer tells the seed, the training step, whether it evaluates, and how far the training has come, which
        moves the drafter's window. The rows tell the problem ids. step: the step that will train on the responses;
        None: the trainer's current step.
        """
        self._here.announced = True
        self.run_seed = trainer.args.seed
        self.step = trainer.state.global_step if step is None else step
        self.evaluation = step is None and not trainer.model.training
        self.several_turns, self._turns = bool(getattr(trainer, "tools", None)), []
        writes_prompts = bool(getattr(trainer, "environment_factories", None))  # from all columns of a row
        self.problems = [problem_id(row, whole_row=writes_prompts) for row in rows]
        if step is None:
            self._is_current = not self._notice_new_weights(trainer)
        if self.evaluation:
            return
        self.rollouts += 1
        responses = getattr(trainer, "num_generations", 1)  # responses to each problem; distillation asks for one
        problems = len(rows) * trainer.accelerator.num_processes // responses  # ranks may share a group
        dataset = trainer.train_dataset
        size = len(dataset) if hasattr(dataset, "__len__") else None
        self.history_tick = history_tick(self.history_unit, self.rollouts, size, problems)

    # ---- new weights ----

    def _notice_new_weights(self, trainer: Any) -> bool:
        """Returns whether the engines lack the trainer's weights, and lets TRL sync them in that case. TRL itself looks
        only whether the training step is another. But weights change without a step, too: the best of a training are
        loaded at its end, a callback averages them, `train` is called again. All ranks must call it."""
        lack = trainer._last_loaded_step != trainer.state.global_step or any(
            ranks.gather(fingerprint(self.model.parameters()) != self._held)
        )
        if lack:
            trainer._last_loaded_step = -1  # TRL's: the step at which the engines got their weights
        return lack

    def _require_current(self) -> None:
        """Raise WeightSyncError if the rollout that begins would have older weights than it must have."""
        if not self._is_current:
            raise WeightSyncError(
                f"step {self.step}: the trainer's weights are newer than the engine's, and nothing synced them: call "
                "trainer.vllm_generation.sync_weights() before this rollout"
            )

    def sync_weights(self) -> None:
        """Load the trainer's weights into the engines and check that they arrived. TRL calls it before a rollout.

        Raises WeightSyncError, on all ranks, if an engine lacks the weights.
        """
        self._load(self.copied_weights(), self.step)
        self._held = fingerprint(self.model.parameters())  # after the load, which merges adapters and parts them again

    def copied_weights(self) -> Any:
        """Returns copies of the trainer's weights, if the engines take copies. All ranks must call it."""
        return self.engines.copied(self._iter_named_params, self.head)

    def push_weights(self) -> None:
        """Send the trainer's weights to an engine by TRL's own code."""
        super().sync_weights()

    def _load(self, copies: Any, step: int) -> None:
        """See sync_weights. copies: of the weights, if the engines take copies."""
        start, self.sync = time.perf_counter(), Sync()
        new = NewWeights(self.push_weights, copies, self.head, self.weight_sample, self.sync)
        check_together(partial(self.engines.load_weights, new), step)
        self.sync.seconds = time.perf_counter() - start
        self._is_current = True

    def _iter_named_params(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Returns the tensors that TRL loads in a sync. The weight check takes its sample from them."""
        tensors = super()._iter_named_params()
        if not self.engines.compares_tensors:
            return tensors
        self.weight_sample.restart()
        return self.weight_sample.watch(whole(tensors))

    # ---- a rollout ----

    def generate(self, prompts: Any, images: Any, num_generations: int, profiler: Any = None) -> Any:
        """Generate for the announced rows, as TRL's VLLMGeneration does. Returns prompt ids, completion ids, log-probs
        and their token ids, each as a list with one entry for each row. What was not announced is no rollout: vLLM
        answers it."""
        if not getattr(self._here, "announced", False):
            return super().generate(prompts, images, num_generations, profiler)
        self._asked = self._problems_asked()
        self._here.generates = True
        try:
            generated = super().generate(prompts, images, num_generations, profiler)
        finally:
            self._here.generates, self._here.announced = False, self.several_turns
        newest = self._turns[-1].rollout if self._turns else self.last
        generated, newest = self.engines.completed(generated, newest, self.logprobs is not None)
        if self._turns:
            assert newest is not None
            self._turns[-1] = replace(self._turns[-1], rollout=newest)
        else:
            self.last = newest
        return generated

    def _problems_asked(self) -> Sequence[str]:
        """Returns the problem ids of all ranks whose prompts TRL gathers with this rank's, in TRL's order of
        prompts."""
        if self.engines.ranks_together == 1:
            return self.problems
        of_ranks: list[Any] = [None] * self.engines.ranks_together
        torch.distributed.all_gather_object(of_ranks, self.problems, group=self.tp_group)
        return [problem for problems in of_ranks for problem in problems]

    def answer(self, prompts: list[Any], sampling_params: Any) -> list[Any]:
        """Let the engines answer TRL's prompts, each with its seed and its problem id: TRL passes one `sampling_params`
        for all prompts, and no problem ids. Returns the engines' outputs."""
        self._require_current()
        turn = len(self._turns)
        rows = conversation_rows(prompts) if turn else range(len(prompts))
        problems = [self.problems[row] for row in rows] if turn else self._asked
        if not turn:
            self._count_responses(len(prompts))
        seeds = [request_seed(self.run_seed, self.step, self._first + row, self.evaluation, turn) for row in rows]
        request = RolloutRequest(
            prompts,
            sampling_params,
            problems,
            seeds=seeds,
            step=self.step,
            next_history_tick=self.history_tick,
            schedule=None if self.evaluation else self.schedule,
            evaluation=self.evaluation,
            turn=turn if self.several_turns else None,
        )
        outputs, rollout = self.engines.roll_out(request)
        if self.several_turns:
            self._turns.append(Turn(rows, rollout))
        else:
            self.last = rollout
        return outputs

    def _count_responses(self, responses: int) -> None:
        """Number the responses of a request within the step, so that each gets a seed of its own. All requests have
        equally many responses, and are numbered in rank order."""
        if self._counted_in != (self.step, self.evaluation):
            self._counted_in, self._requests = (self.step, self.evaluation), 0
        together = self.engines.ranks_together
        self._first = self._requests + self.accelerator.process_index // together * responses
        self._requests += self.accelerator.num_processes // together * responses  # a later rollout has other seeds

    def finish_turns(self) -> None:
        """End the announced rollout, because its last turn is over. Only for rollouts of several turns."""
        self.last = joined(self._turns, self.engines.end_turns(self.step, self.history_tick, self.evaluation))
        self._turns, self._here.announced = [], False

    # ---- a rollout that TRL does not ask for ----

    def submit(self, trainer: Any, rows: Rows, step: int) -> Future[FinishedRollout]:
        """Roll out `rows` for training step `step` with the trainer's current weights: at once, or when the engines
        have done what was submitted before. The future raises the rollout's error, such as WeightSyncError.
        """
        prompts = trainer._tokenize_prompts(copy.deepcopy([row["prompt"] for row in rows]))[0]
        updates = trainer.state.global_step  # that the weights have seen
        load = None
        if self._notice_new_weights(trainer):
            trainer._last_loaded_step = updates
            load = partial(self._load, self.copied_weights(), step)
            self._held = fingerprint(self.model.parameters())

        def roll_out() -> FinishedRollout:
            self.announce(trainer, rows, step)
            self._is_current = load is None
            if load is not None:
                load()
            *_, found, _ = self.generate(prompts=prompts, images=None, num_generations=trainer.num_generations)
            assert self.last is not None
            finished = [
                replace(each, logprobs=[position[0] for position in response])  # the sampled token's
                for each, response in zip(self.last.finished, found, strict=True)
            ]
            return FinishedRollout(replace(self.last, finished=finished), prompts, updates, self.sync)

        return self.engines.submit(roll_out)

    # ---- what is kept ----

    def save_state(self, folder: Path) -> None:
        """Once all submitted rollouts are finished, write the state that a resumed run needs to draft exactly as this
        run would have."""
        self.engines.submit(partial(self._save_state, folder)).result()

    def _save_state(self, folder: Path) -> None:
        self.engines.save_state(folder)
        if self.head is not None:
            self.head.save(folder)
        lengths = {} if self.schedule is None else self.schedule.lengths.state()
        state = {"kind": np.array(STATE), "rollouts": np.array(self.rollouts)}
        save_arrays(folder / STATE, {**state, **lengths})

    def load_state(self, folder: Path) -> None:
        """Continue from what `save_state` wrote."""
        self.engines.load_state(folder)
        if self.head is not None:
            self.head.load(folder)
        arrays = load_arrays(folder / STATE, STATE)
        self.rollouts = int(arrays["rollouts"])
        if self.schedule is not None:
            self.schedule.lengths.restore(arrays)

    def close(self) -> None:
        """End threads and processes that would outlive the trainer."""
        self.engines.close()
