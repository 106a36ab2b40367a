"""task=replay on a made-up run, task=advise on made-up rollouts, task=reproduce where it needs no recorded traces."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from das.budget.latency_forms import Drafting
from das.replay.times import Times
from das.replay.workload import workload
from experiments.recorded.drafter_replay import made_up_problems
from experiments.recorded.latency_files import write_latency
from experiments.recorded.rollouts import read_rollouts
from experiments.run.errors import CONFIGS, UserError
from experiments.tasks import replay, reproduce
from experiments.tasks.advise import task as advise
from experiments.tasks.advise.case import Case, build, sample

FORM = Drafting(base=3e-3, row=1e-4, drafting=1e-3, token=6e-5)


def config(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONFIGS), version_base=None):
        return compose("config", overrides=list(overrides))


def write_rollouts(folder: Path, steps: int) -> None:
    """2 problems x 8 responses a step."""
    made = made_up_problems(2, 8 * steps, 120, seed=3)
    random = np.random.default_rng(0)
    (folder / "rollouts").mkdir(parents=True)
    for step in range(1, steps + 1):
        with gzip.open(folder / "rollouts" / f"step_{step:05d}.jsonl.gz", "wt") as file:
            for problem, texts in made:
                for text in texts[(step - 1) * 8 : step * 8]:
                    ids = text[: int(random.integers(20, 120))].tolist()
                    file.write(json.dumps({"problem_id": problem, "response_ids": ids}) + "\n")


@pytest.fixture
def made_run(tmp_path: Path) -> Path:
    """Two arms whose times were made by the replay itself with FORM, with noise: the task must find them again."""
    random = np.random.default_rng(1)
    for name in ("none", "das"):
        arm = tmp_path / "arms" / name
        write_rollouts(arm, 6)
        own = config(f"arm={name}", "data.problems=2", "trainer.per_device_train_batch_size=16")
        OmegaConf.save(own, arm / "config.yaml")
        steps = replay.replay_arm(read_rollouts(arm, prompt=32), Times(FORM, prefill=1e-5), own)
        with (arm / "metrics.jsonl").open("w") as file:
            for number, step in enumerate(steps, 1):
                line = step.timelines[0]
                seconds = np.diff(line["time_s"], prepend=0.0) * random.normal(1, 0.05, len(line["time_s"]))
                timeline = {"step_time_s": np.cumsum(seconds), "step_live": line["live"], "step_tokens": line["tokens"]}
                with gzip.open(arm / "rollouts" / f"step_{number:05d}.timeline.json.gz", "wt") as out:
                    json.dump({key: value.tolist() for key, value in timeline.items()}, out)
                row = {"rollout_s": float(seconds.sum()), "tokens": step.tokens, "passes": step.passes}
                file.write(json.dumps(row) + "\n")
    return tmp_path


def test_replay_finds_the_times_again(made_run: Path) -> None:
    replay.run(config("task=replay", f"task.run={made_run}"), [], str(made_run / "out"))
    result = json.loads((made_run / "out" / "result.json").read_text())
    assert result["ordering"]
    for arm in result["arms"].values():
        assert abs(arm["error"]) < 0.1
        assert arm["tokens_per_pass"] == pytest.approx(arm["tokens_per_pass_measured"], rel=0.05)
    assert result["arms"]["das"]["predicted_s"] < result["arms"]["none"]["predicted_s"]
    assert (made_run / "out" / "replay.png").exists()


def test_replay_by_a_measured_latency_and_without_other_drafters(made_run: Path) -> None:
    other = made_run / "arms" / "ngram"
    write_rollouts(other, 1)
    OmegaConf.save(config("arm=ngram"), other / "config.yaml")
    (other / "rollouts" / "step_00001.timeline.json.gz").write_bytes(b"")
    rows = [
        [b, b * (1 + d), 100 * b, float(FORM.predict(*map(np.array, (b, b * (1 + d), 0.0))))]
        for b in (1.0, 4.0, 16.0)
        for d in (0.0, 1.0, 4.0, 16.0)
    ]
    latency = made_run / "latency.json"
    write_latency(latency, rows, "made up", derived=False)
    replay.run(config("task=replay", f"task.run={made_run}", f"task.latency={latency}"), [], str(made_run / "measured"))
    result = json.loads((made_run / "measured" / "result.json").read_text())
    assert "made up, measured" in result["latency"]
    assert result["arms"].keys() == {"none", "das"}
    assert all(abs(arm["error"]) < 0.1 for arm in result["arms"].values())
    with (made_run / "arms" / "das" / "metrics.jsonl").open("r+") as file:
        file.truncate(len(file.readline()))
    with pytest.raises(UserError, match="was it interrupted"):
        replay.run(config("task=replay", f"task.run={made_run}"), [], str(made_run / "cut"))


def test_replay_sends_the_longest_first_as_the_run_did() -> None:
    """With one slot in a batch of two problems, what is sent first ends first."""
    short, long = np.zeros(5, int), np.zeros(50, int)
    works = [workload(["short", "long"], [short, long], 4)] * 2
    own = config("arm=none", "engine.max_num_seqs=1")
    lines = [step.timelines[0]["time_s"] for step in replay.replay_arm(works, Times(FORM, prefill=1.0), own)]
    assert np.flatnonzero(np.diff(lines[0]) > 1) + 1 == [5]  # the second request's prompt
    assert np.flatnonzero(np.diff(lines[1]) > 1) + 1 == [50]


def test_advise_samples_problems_wherever_they_were() -> None:
    """Epochs in other orders: each step of the sample has every chosen problem once, oldest groups first."""
    steps = [
        workload([p, p, q, q], [[i], [i], [i], [i]]) for i, (p, q) in enumerate([("a", "b"), ("c", "d"), ("a", "c")])
    ]
    found = sample(steps, 100, 100)
    assert [work.problems for work in found] == [("a", "a", "c", "c"), ("a", "a", "c", "c")]
    assert [work.tokens.tolist() for work in found] == [[0, 0, 1, 1], [2, 2, 2, 2]]
    assert {p for work in sample(steps, 4, 100) for p in work.problems} == {"a"}
    assert {p for work in sample(steps, 100, 3) for p in work.problems} == {"a"}  # more would not fit the engine
    assert [work.problems for work in sample(steps, 100, 1)] == [("a",), ("a",)]


def test_advise_writes_a_page(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "mine", 4)
    overrides = [f"task.rollouts={tmp_path / 'mine'}", "task.engines=2", "task.batch=64", "task.max_tokens=200"]
    advise.run(config("task=advise", *overrides), [], str(tmp_path / "out"))
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert {"none", "ngram", "suffix-like", "das", "w4", "eagle", "mtp"} <= result["arms"].keys()
    assert result["seconds"] < 60
    das = result["arms"]["das"]
    assert das["rollout_change"] < das["step_change"] < 0
    assert das["low_s"] <= das["rollout_s"] <= das["high_s"]
    assert result["arms"]["mtp"]["tokens_per_pass"] == pytest.approx(3.3, rel=0.1)
    page = (tmp_path / "out" / "advice.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert "http" not in page.replace("http://www.w3.org", "")


def test_advice_by_hand(tmp_path: Path) -> None:
    """What a sheet of paper gives: waiting for slots, Amdahl, the live requests at which drafts stop paying."""
    rows = [{"problem_id": str(i), "step": s, "response_ids": [7] * 100} for s in (1, 2) for i in range(4)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # A pass takes 10 ms up to 32 tokens, then as much longer as they are more. 128 requests an engine, 32 at once.
    settings = [
        "task.engines=2",
        "task.batch=256",
        "task.max_num_seqs=32",
        "task.prompt=0",
        "task.draft_us=0",
        "task.rest_s=6",
    ]
    settings += [f"task.rollouts={tmp_path / 'mine.jsonl'}", "task.step_ms=[[1,10],[32,10],[3200,1000]]"]
    advise.run(config("task=advise", *settings), [], str(tmp_path / "out"))
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    none, das = result["arms"]["none"], result["arms"]["das"]
    assert none["rollout_s"] == pytest.approx(4 * 100 * 10e-3)  # four waves of a hundred passes
    assert none["step_s"] == pytest.approx(4 + 6)
    assert das["step_s"] == pytest.approx(das["rollout_s"] + 6)
    assert das["step_change"] == pytest.approx(das["rollout_change"] * 0.4)
    gains = {live: gain for live, gain, _ in result["speedup_by_live"]}
    # Nearly every drafted token is right. 8 requests: some 3 each for nothing; from 32 on only tokens count.
    assert gains[1] > 12
    assert 3.3 < gains[8] < 4.1
    assert 0.9 < gains[32] < 1.03
    assert gains[1024] == pytest.approx(gains[64], rel=0.01)
    assert result["pays_up_to"] == 24
    assert result["advice"].startswith("Do not turn it on: ")  # all 32 are live to the end
    assert "up to about 24 live requests" in result["advice"]


def test_advise_range_of_derived_times_is_wider(tmp_path: Path) -> None:
    """Nobody measured what verifying costs there, so it may cost what it did elsewhere."""
    write_rollouts(tmp_path / "mine", 2)
    case, about = build(config("task=advise", f"task.rollouts={tmp_path / 'mine'}").task)
    assert case.derived
    assert about[-1].endswith("derived, not measured")
    live, tokens, context = (np.array(value, float) for value in (256, 512, 0))
    plain, expected, dear = (
        float(form.predict(live, n, context))
        for form, n in ((case.form, live), (case.form, tokens), (case.dearer().form, tokens))
    )
    assert dear - plain == pytest.approx(1.3 * (expected - plain) + 256 * 146e-6 / 3)
    step_ms = "task.step_ms=[[1,10],[1000,20]]"
    measured, _ = build(config("task=advise", f"task.rollouts={tmp_path / 'mine'}", step_ms).task)
    assert not measured.derived
    assert float(measured.dearer().form.predict(live, live, context)) == float(
        measured.form.predict(live, live, context)
    )


def arm(change: float, high: float) -> dict[str, float]:
    low = change - 0.1
    return {"rollout_change": change, "high_change": high, "low_change": low, "step_change": 0.6 * change} | {
        "tokens_per_pass": 1.5
    }


@pytest.mark.parametrize(
    ("das", "model", "starts", "holds"),
    [
        (
            arm(-0.3, -0.1),
            arm(-0.2, 0.0),
            "Turn it on with arm=das SETTINGS: rollouts should take 30% less",
            "10% to 40%",
        ),
        (arm(-0.3, 0.2), arm(-0.2, 0.0), "Do not turn it on yet: rollouts should take 30% less time, but 20% more", ""),
        (arm(-0.01, 0.0), arm(0.0, 0.0), "Do not turn it on: speculation from history changes rollout time by -1%", ""),
        (arm(0.1, 0.2), arm(-0.2, -0.1), "Do not turn it on: ", "(eagle) would save 20%"),
        (arm(-0.3, -0.1), arm(-0.5, -0.2), "Turn it on", "(eagle) would save 50%"),
    ],
)
def test_the_line_agrees_with_the_table(
    das: dict[str, float], model: dict[str, float], starts: str, holds: str
) -> None:
    case = Case([], FORM, 1.0, 1, 1, 0.0, 0.0, derived=False)
    line = advise.advice(das, "SETTINGS", 64, 16, ("eagle", model), case)
    assert line.startswith(starts)
    assert holds in line
    assert ("would save" in line) == ("would save" in holds)
    assert "up to about 64 live requests per engine (16 if drafted tokens are dearer)" in line
    assert advise.choose_setting({"das": (10, 12), "other": (9, 12.9)}) == "das"  # 0.5 % better
    assert advise.choose_setting({"das": (10, 12), "other": (9, 12)}) == "other"
    assert advise.pays_up_to([(1, 2.0), (2, 1.03), (4, 1.0), (8, 1.5)]) == 2


def test_advise_says_no_when_drafted_tokens_cost_a_pass(tmp_path: Path) -> None:
    """Each token costs as much as starting a pass."""
    write_rollouts(tmp_path / "mine", 4)
    overrides = [f"task.rollouts={tmp_path / 'mine'}", "task.step_ms=[[1,20],[1000,20000]]", "task.draft_us=1000"]
    advise.run(config("task=advise", *overrides), [], str(tmp_path / "out"))
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["advice"].startswith("Do not")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], "task.rollouts=PATH is missing"),
        (["task.rollouts=ROLLOUTS", "task.gpu=H9"], "unknown GPU"),
        (["task.rollouts=ROLLOUTS", "task.max_tokens=10"], "raise the limit"),
        (["task.rollouts=ROLLOUTS", "task.draft_us=-1"], "must not be negative"),
        (["task.rollouts=ROLLOUTS", "task.step_ms=[[1,-5],[2,3]]"], "must be positive"),
        (["task.rollouts=ROLLOUTS", "task.step_ms=[[1,5]]"], "two points or more"),
        (["task.rollouts=ROLLOUTS", "task.step_ms=[[1,5],[9,4]]"], "must not fall as tokens rise"),
        (["task.rollouts=ROLLOUTS", "task.step_ms=[[1,5,6]]"], "pairs of two numbers"),
        (["task.rollouts=ROLLOUTS", "task.step_ms=[1,5]"], r"\[\[tokens, milliseconds\], ...\]"),
        (["task.rollouts=ROLLOUTS", "task.step_ms=[[1,5],[2,6]]", "task.latency=x"], "give one"),
        (["task.rollouts=ROLLOUTS", "task.latency=nowhere.json"], "No such file"),
        (["task.rollouts=ROLLOUTS", "task.model=70B"], "unknown model size"),
        (["task.rollouts=ROLLOUTS", "task.rest_s=-2"], "must not be negative"),
        (["task.rollouts=ROLLOUTS", "task.w4_rate=1.5"], "numbers in 0..1"),
        (["task.rollouts=ROLLOUTS", "task.eagle_tau=9"], "impossible"),
    ],
)
def test_advise_bad_input_is_one_line(tmp_path: Path, overrides: list[str], said: str) -> None:
    write_rollouts(tmp_path / "mine", 1)
    own = [override.replace("ROLLOUTS", str(tmp_path / "mine")) for override in overrides]
    with pytest.raises(UserError, match=said) as error:
        advise.run(config("task=advise", *own), [], str(tmp_path / "out"))
    assert "\n" not in str(error.value)


def test_replay_bad_input_is_one_line(tmp_path: Path) -> None:
    for overrides, said in (([], "task.run=FOLDER"), ([f"task.run={tmp_path}"], "holds no run")):
        with pytest.raises(UserError, match=said):
            replay.run(config("task=replay", *overrides), [], str(tmp_path / "out"))


def test_reproduce_nemo_rl(tmp_path: Path) -> None:
    reproduce.run(config("task=reproduce", "paper=nemo_rl"), [], str(tmp_path))
    report = (tmp_path / "nemo_rl" / "report.md").read_text()
    assert "| 2.72 / 1.7x | 2.72 / 1.70x" in report
    assert "| 6.49 / 2.22x | 6.51 / 2.22x" in report
    assert (tmp_path / "nemo_rl" / "nemo_heatmap.png").exists()
    with pytest.raises(UserError, match=r"paper=dsa"):
        reproduce.run(config("task=reproduce", "paper=dsa"), [], str(tmp_path))


def test_report_of_everything_says_where_a_papers_numbers_are_from(tmp_path: Path) -> None:
    reproduce.run(config("task=reproduce", "paper=nemo_rl"), [], str(tmp_path / "run"))
    first, *others = reproduce.replayed(tmp_path / "run", "nemo_rl", tmp_path)
    assert first.setting.startswith("The paper's numbers are second-hand")
    assert not any("second-hand" in section.setting for section in others)


def test_boundary_of_efficient_rollout() -> None:
    from experiments.papers.efficient_rollout import largest_batch, roofline

    published = json.loads((CONFIGS.parent / "experiments" / "papers" / "published.json").read_text())
    for name, rows in published["er_boundary"]["data"].items():
        model = roofline(published["er_constants"]["data"][name])
        for row in rows:
            assert [largest_batch(model, row["gamma"], row["tau"], S) for S in row["S"]] == row["B_star"]


def test_ladder_climbs_as_published() -> None:
    from experiments.papers.efficient_ladder import climb, known_rates, rising

    data = json.loads((CONFIGS.parent / "experiments" / "papers" / "published.json").read_text())["er_ladder"]["data"]
    ends = {}
    for name, observed in data["transitions"].items():
        rungs, moves = climb(data, rising(known_rates(data, name)))
        assert [move["to"] for move in moves] == [move["to"] for move in observed]
        for ours, theirs in zip(moves, observed, strict=True):
            assert ours["before"] == pytest.approx(theirs["tau_before"], abs=0.05)
        ends[name] = rungs[-1]
    assert list(ends.values()) == [11, 9, 5]


def test_similarity_counts_runs_of_tokens() -> None:
    from experiments.papers.das_drafts import seen_before, seen_by_step

    past = workload(["a", "b"], [[1, 2, 3, 4], [9, 9, 9, 9]])
    assert seen_before(workload(["a"], [[1, 2, 3, 7]]), past, 2) == pytest.approx(2 / 3)
    assert seen_before(workload(["a", "b"], [[1, 2, 3, 4], [1, 2, 3, 4]]), past, 2) == pytest.approx(1 / 2)
    with pytest.raises(UserError, match="past one"):
        seen_before(workload(["c"], [[1, 2]]), past, 2)
    steps = [workload(["a"], [[1, 2, 3]]), workload(["b"], [[1, 2, 3]]), workload(["a"], [[1, 2, 4]])]
    assert seen_by_step(steps, 2) == ([3], [0.5])
