"""Rollouts in several turns, without an engine: seeds by (row, turn), problems, clock, sums over turns, refusals."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from torch.nn import Identity

from das.engine.rollouts.report import Finished, RolloutReport, added
from das.engine.rollouts.rollout import EVALUATION, Rollout, RolloutRequest, evaluation_seed, request_seed
from das.general.errors import EngineError
from das.trl.conversations import RowTokens, Turn, conversation_rows, follow_turns, joined
from das.trl.generation import SpeculativeGeneration
from experiments.run.run_folder import rollout_row

PROMPTS = [[10], [10], [20], [20]]


def turn_rollout(problems: Sequence[str], responses: list[list[int]], passes: int) -> Rollout:
    return Rollout(
        step=3,
        finished=[
            Finished(passes, 1, 0.1, 0.9, problem=problem, tokens=tokens, finish_reason="stop", predicted_length=5.0)
            for problem, tokens in zip(problems, responses, strict=True)
        ],
        rollout_s=2.0,
        report=RolloutReport(
            passes=passes * len(responses),
            drafted=len(responses),
            draft_s=0.25,
            draft_rounds=1,
            decode_steps=2,
            tail_steps=1,
            step_time_s=[0.5, 1.0],
            step_live=[2, 1],
            pass_measured_s=[0.1],
            traces={"pass_speedup": [0.9]},
        ),
    )


class Recorded:
    """A backend whose engine is replaced by a record of what it was asked."""

    def __init__(self, process: int = 0, processes: int = 1):
        self.requests: list[RolloutRequest] = []
        self.ends: list[tuple[Any, ...]] = []
        engines: Any = SimpleNamespace(
            roll_out=self._turn,
            end_turns=self._end,
            ranks_together=1,
            of_all_ranks=False,
        )
        backend: Any = object.__new__(SpeculativeGeneration)
        self.backend = backend
        vars(backend).update(
            history_unit="step", rollouts=0, history_tick=0, schedule=None,
            engines=engines, _counted_in=(0, False), _requests=0,
            model=Identity(), _held=(), _here=SimpleNamespace(announced=False),
            accelerator=SimpleNamespace(process_index=process, num_processes=processes),
        )  # fmt: skip

    def _turn(self, request: RolloutRequest) -> Any:
        self.requests.append(request)
        return [], turn_rollout(request.problems, [[7, 8] for _ in request.prompts], passes=1)

    def _end(self, *args: Any) -> RolloutReport:
        self.ends.append(args)
        return RolloutReport(draft_s=0.5, history_tokens=9)

    def roll_out(self, going_on: Sequence[Sequence[int]], training: bool = True) -> list[list[int]]:
        """Roll out four rows as TRL does. going_on: the rows of each later turn. Returns the seeds of each turn."""

        def generate(prompts: Sequence[list[int]]) -> None:
            self.backend._asked = self.backend._problems_asked()
            self.backend.answer([{"prompt_token_ids": ids} for ids in prompts], None)

        def loop(prompts: Any, prompt_ids: list[list[int]], completion_ids: list[list[int]]) -> str:
            for rows in going_on:
                generate([prompt_ids[row] + completion_ids[row] + [5] for row in rows])
                for row in rows:
                    completion_ids[row] = completion_ids[row] + [5, 7, 8]
            return "as TRL returned"

        trainer: Any = SimpleNamespace(
            tools=[print], _tool_call_loop=loop, vllm_generation=self.backend,
            num_generations=2, train_dataset=range(2),
            args=SimpleNamespace(
                seed=5, vllm_mode="colocate", vllm_tensor_parallel_size=1, vllm_enable_sleep_mode=False
            ),
            state=SimpleNamespace(global_step=3), _last_loaded_step=3, model=SimpleNamespace(training=training),
            accelerator=self.backend.accelerator,
        )  # fmt: skip
        follow_turns(trainer)
        self.requests.clear()
        self.backend.announce(trainer, [{"prompt": "p", "problem_id": f"problem {ids[0]}"} for ids in PROMPTS])
        generate(PROMPTS)
        assert trainer._tool_call_loop(None, PROMPTS, [[7, 8] for _ in PROMPTS]) == "as TRL returned"
        return [list(request.seeds) for request in self.requests]


def test_a_rows_seed_does_not_depend_on_the_other_rows() -> None:
    all_go_on = Recorded().roll_out([[0, 1, 2, 3], [0, 1, 2, 3]])
    some = Recorded().roll_out([[1, 2, 3], [1, 3]])
    assert some[0] == all_go_on[0]
    assert some[1] == all_go_on[1][1:]
    assert some[2] == [all_go_on[2][1], all_go_on[2][3]]
    assert len({seed for seeds in all_go_on for seed in seeds}) == 12
    assert all_go_on == [[request_seed(5, 3, row, turn=turn) for row in range(4)] for turn in range(3)]


def test_later_rollouts_of_a_step_and_other_processes_get_other_seeds() -> None:
    seen = []
    for process in (0, 1):
        backend = Recorded(process, processes=2)
        for training in (True, False, False):
            seen += [seed for seeds in backend.roll_out([[0, 2], [2]], training) for seed in seeds]
    assert len(set(seen)) == len(seen) == 2 * 3 * 7


def test_first_turns_have_the_seeds_of_rollouts_in_one_turn() -> None:
    assert request_seed(5, 3, 2, turn=0) == request_seed(5, 3, 2)
    ends = {int(evaluation) + 4 * turn for evaluation in (False, True) for turn in range(50)}
    assert len(ends) == 100
    assert EVALUATION not in ends
    assert evaluation_seed(5, 3, "p", 0) != request_seed(5, 3, 0)


def test_the_clock_moves_once_a_rollout_also_if_nobody_calls_a_tool() -> None:
    recorded = Recorded()
    for tick, going_on in enumerate(([[1, 2], [2]], []), 1):
        recorded.roll_out(going_on)
        assert recorded.ends[-1] == (3, tick, False)
        assert len(recorded.ends) == tick
    assert [len(response) for response in recorded.backend.last.responses] == [2, 2, 2, 2]


def test_sums_over_turns() -> None:
    first = turn_rollout(["p", "p", "q"], [[1], [2], [3]], passes=1)
    second = turn_rollout(["p", "q"], [[4, 5, 6], [7, 8, 9]], passes=2)
    whole = joined(
        [Turn([0, 1, 2], first), Turn([0, 2], second)], RolloutReport(draft_s=0.5, history_tokens=9, alarms=["x"])
    )
    assert whole.responses == [[1, 4, 5, 6], [2], [3, 7, 8, 9]]
    assert [request.turns for request in whole.finished] == [[1, 3], [1], [1, 3]]
    assert [request.passes for request in whole.finished] == [3, 1, 3]
    assert [request.predicted_length for request in whole.finished] == [10.0, 5.0, 10.0]
    assert [request.last_s for request in whole.finished] == [2.9, 0.9, 2.9]
    assert first.responses == [[1], [2], [3]], "the turns are left as they were"
    assert whole.report.step_time_s == [0.5, 1.0, 2.5, 3.0]
    assert (whole.rollout_s, whole.report.passes, whole.report.draft_s) == (4.0, 7, 1.0)
    assert (whole.report.history_tokens, whole.report.alarms) == (9, ["x"])
    both = added(RolloutReport(calibration_error=0.1, passes=3), RolloutReport(calibration_error=0.2, passes=4))
    assert (both.passes, both.calibration_error) == (7, 0.2), "what is no sum is not added"
    timeline = whole.report.timeline()
    assert (timeline["pass_measured_s"], timeline["pass_speedup"]) == ([0.1, 0.1], [0.9, 0.9])
    assert "pass_predicted_s" not in timeline
    assert rollout_row(whole)["tokens_per_pass"] == 9 / 7


def test_rows_travel_with_their_tokens() -> None:
    prompt = RowTokens([1, 2], row=7) + [3] + [4]  # noqa: RUF005  as TRL does
    assert (prompt, conversation_rows([{"prompt_token_ids": prompt}])) == ([1, 2, 3, 4], [7])
    with pytest.raises(EngineError, match="lost their rows"):
        conversation_rows([{"prompt_token_ids": [1, 2, 3, 4]}])


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        ({"rollout_func": print}, r"rollout_func calls the engine itself, .* use tools or environment_factory"),
        ({"tools": [print], "tensor_parallel": 2}, "vllm_tensor_parallel_size=1"),
        ({"tools": [print], "mode": "server"}, "set vllm_mode"),
        ({"tools": [print], "shared": True, "processes": 2}, "launch one process, or go without cluster="),
        ({"tools": [print], "sleep": True, "processes": 2}, "set vllm_enable_sleep_mode=False, or launch one process"),
    ],
)
def test_refusals(trainer: dict[str, Any], message: str) -> None:
    mode, size = trainer.pop("mode", "colocate"), trainer.pop("tensor_parallel", 1)
    args = SimpleNamespace(
        vllm_mode=mode, vllm_tensor_parallel_size=size, vllm_enable_sleep_mode=trainer.pop("sleep", False)
    )
    accelerator = SimpleNamespace(num_processes=trainer.pop("processes", 1))
    generation = SimpleNamespace(engines=SimpleNamespace(of_all_ranks=trainer.pop("shared", False)))
    with pytest.raises(EngineError, match=message):
        follow_turns(SimpleNamespace(args=args, accelerator=accelerator, vllm_generation=generation, **trainer))
