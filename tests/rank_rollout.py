"""Two ranks roll out on a cluster that is made up: the main rank asks it once, for the requests of both."""

from types import SimpleNamespace

from das.engine.rollouts.report import ClusterReport, Finished, RolloutReport
from das.engine.rollouts.rollout import Rollout, RolloutRequest
from das.general import ranks
from das.trl.engines.cluster import ClusterEngines
from experiments.rank_folders import join
from experiments.run.rollout_row import rollout_row

SHARES = (1, 2)  # rows of each rank


def answered(request: RolloutRequest) -> Rollout:
    """A cluster's rollout: each response is the request's seed, as often as its prompt is long."""
    assert ranks.is_main()
    tokens = [
        [seed] * len(prompt["prompt_token_ids"]) for prompt, seed in zip(request.prompts, request.seeds, strict=True)
    ]
    finished = [
        Finished(1, len(row), last_s=1.0, problem=problem, tokens=row, finish_reason="stop")
        for row, problem in zip(tokens, request.problems, strict=True)
    ]
    report = RolloutReport(
        passes=3,
        drafted=sum(map(len, tokens)),
        draft_s=0.1,
        draft_rounds=5,
        decode_steps=5,
        tail_steps=5,
        step_time_s=[0.5],
        cluster=ClusterReport(2, 0, 0, 0.0, 0, {}),
    )
    return Rollout(0, finished, 2.0, report)


if __name__ == "__main__":
    join()
    rank = ranks.rank()
    prompts = [{"prompt_token_ids": [1] * (rank + row + 1)} for row in range(SHARES[rank])]
    seeds = [10 * (rank + 1) + row for row in range(SHARES[rank])]
    problems = [f"p{seed}" for seed in seeds]
    engines = ClusterEngines.__new__(ClusterEngines)
    if ranks.is_main():
        engines.cluster = SimpleNamespace(roll_out=answered)
    responses, rollout = engines.roll_out(RolloutRequest(prompts, None, problems, seeds, 0, 1))
    expected = [[seed] * (rank + row + 1) for row, seed in enumerate(seeds)]
    assert rollout.responses == [response.tokens for response in responses] == expected
    assert [each.problem for each in rollout.finished] == problems
    row = rollout_row(rollout)
    assert row["passes"] == len(seeds)
    assert row["decode_steps"] == (0 if rank else 5)
    assert ("cluster" in row) == ranks.is_main()
