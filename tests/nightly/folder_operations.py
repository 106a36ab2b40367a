"""Do things to the folders of runs in random order: start, kill, start again, resume, copy, move, delete, two at once.

PYTHONPATH=.dev:.:tests .venv/bin/python tests/nightly/folder_operations.py 500   operations; a seed may
follow.

Runs are run.py's own, of task=train with a tiny policy, each in a process that is forked from this one, which has
imported everything. Only the engine is a stand-in: its tokens follow from seeds and from what it has seen before. Each
run ends with the rows, responses and weights of one that was left alone, or in one line; killed ones end as killed.
"""

import multiprocessing
import os
import random
import runpy
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from conftest import random_policy
from equal_runs import differing_files
from scripts import ROOT, SIZES

from analysis import read
from analysis.metrics import timeless
from das.engine.learned import HISTORY
from das.engine.rollouts.report import Finished, RolloutReport
from das.engine.rollouts.rollout import Rollout, RolloutRequest
from das.weights.agreement import Policy
from experiments.arm.resume import LOCK
from experiments.training.stock import StockEngine

STEPS, SEEDS = 5, (0, 1)
RUN = (
    *SIZES, "task=train", "arm=none", "wandb=off", "data.problems=6", f"trainer.max_steps={STEPS}",
    "trainer.learning_rate=0.01", "checkpoint.every=1",
)  # fmt: skip
NO_RUN = "it holds no run of task=train"
FORK = multiprocessing.get_context("fork")


class Engine(StockEngine):
    """An engine without a model. Its state is all that it has answered."""

    logprob_checks = -1

    def __init__(self) -> None:
        self.seen = 0
        inner = SimpleNamespace(
            engine_core=SimpleNamespace(engine_core=None),
            input_processor=SimpleNamespace(),
            model_config=SimpleNamespace(max_model_len=4096),
            model_executor=SimpleNamespace(
                driver_worker=SimpleNamespace(
                    model_runner=SimpleNamespace(model=SimpleNamespace(load_weights=list)),
                )
            ),
        )
        llm = SimpleNamespace(llm_engine=inner, reset_prefix_cache=lambda: None, generate=None)
        super().__init__(llm)

    @property
    def policy(self) -> Policy:
        return Policy("float32", tied=True, room=4096, keeps_bits=False)

    def take_weights(self, sample: Any) -> str:
        sample.take()
        return ""

    def roll_out(self, request: RolloutRequest, turn: int | None = None) -> tuple[list[Any], Rollout]:
        from vllm.logprobs import Logprob

        outputs, responses = [], []
        for prompt, seed in zip(request.prompts, request.seeds, strict=True):
            draw = random.Random(seed ^ self.seen)
            tokens = [draw.randrange(5, 200) for _ in range(draw.randint(2, 9))]
            logprobs = [{token: Logprob(-draw.random(), 1)} for token in tokens]
            answer = SimpleNamespace(token_ids=tokens, logprobs=logprobs, finish_reason="stop")
            outputs.append(SimpleNamespace(prompt_token_ids=prompt["prompt_token_ids"], outputs=[answer]))
            responses.append(tokens)
        self.seen = (self.seen * 31 + sum(map(sum, responses))) % 2**31
        finished = [
            Finished(len(output.outputs[0].token_ids), 0).answered(problem, output.outputs[0])
            for output, problem in zip(outputs, request.problems, strict=True)
        ]
        report = RolloutReport(passes=sum(map(len, responses)), decode_steps=9)
        return outputs, Rollout(request.step, finished, 0.01, report)

    def save_state(self, folder: Path) -> None:
        (folder / HISTORY).write_text(str(self.seen))

    def load_state(self, folder: Path) -> None:
        self.seen = int((folder / HISTORY).read_text())


def command(arguments: Sequence[str], output: Path) -> None:
    """Body of a process: run.py with these arguments. Its standard error goes to a file."""
    from das.general.process import die_with_parent

    die_with_parent()
    with output.open("w") as errors, Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        sys.argv = ["run.py", *arguments]
        runpy.run_path(str(ROOT / "run.py"), run_name="__main__")


@dataclass
class Started:
    """A process that runs run.py."""

    process: Any
    output: Path
    began: float = field(default_factory=time.monotonic)

    def end(self, kill_after_s: float | None = None) -> tuple[int, str]:
        """Wait until it ends, or kill it after so many seconds. Returns its exit code and its standard error."""
        self.process.join(kill_after_s)
        if kill_after_s is not None:
            self.process.kill()
        self.process.join()
        # One that is killed at once has not opened the file yet.
        return self.process.exitcode, self.output.read_text() if self.output.exists() else ""


class Folders:
    """The folders of runs, and what was done to them."""

    def __init__(self, root: Path, policy: str, seed: int):
        self.root, self.policy, self.draw = root, policy, random.Random(seed)
        self.seed_of: dict[Path, int] = {}  # the folder of a run -> the seed that it trains with
        self.made = 0
        self.wrong: list[str] = []
        self.ended: Counter[str] = Counter()
        self.whole = {seed: self.root / f"whole_{seed}" for seed in SEEDS}
        self.took_s = 0.0
        for seed, folder in self.whole.items():
            began = time.monotonic()
            code, errors = self.start(self.first(folder, seed)).end()
            if code:
                raise RuntimeError(errors)
            self.took_s = time.monotonic() - began

    def new(self) -> Path:
        self.made += 1
        return self.root / f"run_{self.made}"

    def first(self, folder: Path, seed: int) -> list[str]:
        """The command that starts a run, and starts it again."""
        return [*RUN, f"policy.path={self.policy}", f"seed={seed}", f"hydra.run.dir={folder}"]

    def start(self, arguments: Sequence[str]) -> Started:
        self.made += 1
        output = self.root / f"errors_{self.made}"
        process = FORK.Process(target=command, args=(arguments, output))
        process.start()
        return Started(process, output)

    def again(self, folder: Path) -> list[str]:
        """A command that goes on with a run."""
        return self.draw.choice(([f"resume={folder}"], self.first(folder, self.seed_of[folder])))

    def moment(self) -> float | None:
        """When to kill a run, in seconds after its start; None: not at all."""
        return self.draw.choice((None, self.draw.uniform(0, 1.1 * self.took_s)))

    # ---- what may be done ----

    def begin(self, folder: Path) -> None:
        folder = self.new()
        self.seed_of[folder] = self.draw.choice(SEEDS)
        self.judge("start", folder, self.start(self.first(folder, self.seed_of[folder])).end(self.moment()))

    def go_on(self, folder: Path) -> None:
        self.judge("go on", folder, self.start(self.again(folder)).end(self.moment()))

    def refused(self, folder: Path) -> None:
        """Give the folder to another run."""
        if not (folder / "overrides.json").exists():
            return
        other = self.first(folder, 1 - self.seed_of[folder])
        wrong_task = [f"resume={folder}", "task=compare"]
        rollout = [*RUN[:-1], "task=rollout", f"hydra.run.dir={folder}"]
        before = contents(folder)
        code, errors = self.start(self.draw.choice((other, wrong_task, rollout))).end()
        if code != 2 or contents(folder) != before:
            self.wrong.append(f"another run in {folder}: {code}, {errors}")
        self.judge("refuse", folder, (code, errors), "")

    def two_at_once(self, folder: Path) -> None:
        both = [self.start(self.again(folder)) for _ in range(2)]
        kill = self.draw.choice((None, None, self.draw.uniform(0, self.took_s)))
        ends = [both[0].end(kill), both[1].end()]
        for end in ends:
            self.judge("two at once", folder, end, "still running")
        if kill is None and all(code for code, _ in ends):
            self.wrong.append(f"two at once in {folder}, and none ended well: {ends}")

    def copy(self, folder: Path) -> None:
        """Copy a run that is stopped."""
        other = self.new()
        shutil.copytree(folder, other)
        self.seed_of[other] = self.seed_of[folder]

    def copy_amid(self, folder: Path) -> None:
        """Copy a run while it goes on. The copy may lack files, so that it may be refused."""
        running = self.start(self.again(folder))
        time.sleep(self.draw.uniform(0, self.took_s))
        other = self.new()
        with suppress(shutil.Error):  # files that were renamed meanwhile
            shutil.copytree(folder, other)
        self.judge("copied", folder, running.end(self.moment()))
        self.seed_of[other] = self.seed_of[folder]
        end = self.start(self.again(other)).end()
        self.judge("go on with the copy", other, end, "")
        if end[0]:
            self.delete(other)

    def move(self, folder: Path) -> None:
        other = self.new()
        folder.rename(other)
        self.seed_of[other] = self.seed_of.pop(folder)

    def delete(self, folder: Path) -> None:
        shutil.rmtree(folder)
        del self.seed_of[folder]

    def delete_amid(self, folder: Path) -> None:
        """Delete the folder of a run that goes on."""
        running = self.start(self.again(folder))
        time.sleep(self.draw.uniform(0, self.took_s))
        shutil.rmtree(folder, ignore_errors=True)
        end = running.end()
        self.judge("deleted", None, end, "")
        shutil.rmtree(folder, ignore_errors=True)
        del self.seed_of[folder]

    def one(self) -> str:
        """Do one thing to one folder."""
        stopped = [folder for folder in self.seed_of if folder.is_dir()]
        often = (self.begin, self.go_on, self.go_on, self.two_at_once)
        others = (self.refused, self.copy, self.copy_amid, self.move, self.delete, self.delete_amid)
        do = self.draw.choice((*often, *others)) if stopped else self.begin
        if len(stopped) > 8:
            do = self.delete
        do(self.draw.choice(stopped) if stopped else Path())
        return do.__name__

    # ---- what must hold ----

    def judge(self, what: str, folder: Path | None, end: tuple[int, str], *allowed: str) -> None:
        """Note what is wrong with the end of a run. allowed: words of refusals that are right here; so is one of a run
        that was killed before it had written its settings."""
        code, errors = end
        lines = [line for line in errors.splitlines() if not line.startswith("warning: ")]
        clear = code > 0 and len(lines) == 1 and lines[0].startswith("error: ")
        how = {0: "well", -signal.SIGKILL: "killed"}.get(code, "in one line" if clear else "otherwise")
        self.ended[how] += 1
        problem = ""
        if how == "otherwise":
            problem = f"ended with {code}: {errors[-2000:]}"
        elif how == "in one line" and not any(words in lines[0] for words in (*allowed, NO_RUN)):
            problem = f"was refused: {lines[0]}"
        elif folder is not None and folder.is_dir():
            problem = "; ".join(self.differences(folder, whole=code == 0))
        if problem:
            self.wrong.append(f"{what} in {folder}: {problem}")

    def differences(self, folder: Path, whole: bool) -> Iterator[str]:
        """How a run differs from the one that was left alone. whole: whether it has come to its end."""
        reference = self.whole[self.seed_of[folder]]
        expected = timeless(read.metrics(reference))
        rows = timeless(read.metrics(folder)) if (folder / "metrics.jsonl").exists() else []
        if rows != expected[: len(rows)]:
            yield f"rows of steps {[row['step'] for row in rows]} differ"
        if whole:
            if len(rows) != STEPS:
                yield f"{len(rows)} rows"
            yield from differing_files(reference, folder)


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder, without the lock that a killed run leaves."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != LOCK}


def main(count: int, seed: int = 0) -> int:
    """Do `count` operations, and print how runs ended. Returns 1 if anything was wrong."""
    import vllm  # noqa: F401
    from trl import GRPOTrainer  # noqa: F401

    from experiments.training import generation

    generation.build_in_process = lambda *args, **kwargs: Engine()
    done: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        making = FORK.Process(target=random_policy, args=(root / "policy",))  # torch's threads stay out of this process
        making.start()
        making.join()
        folders = Folders(root, str(root / "policy"), seed)
        for number in range(count):
            done[folders.one()] += 1
            for line in folders.wrong:
                print(f"operation {number}: {line}", flush=True)
            if folders.wrong:
                return 1
            if number % 50 == 49:
                print(f"{number + 1} operations", flush=True)
    print(f"{count} operations {dict(done)}: runs ended {dict(folders.ended)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
