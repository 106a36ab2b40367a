"""Shared parts: a tiny random policy, and engines built and torn down inside the test process."""

import gc
import gzip
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from shutil import copytree
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from costs import Costs
from hypothesis import settings
from runs import RUNS, STOPS, make
from scripts import COMPARED_STEPS, GIVEN_PRICES, RANK_RUN, SIZES, TWO_RANKS, of_ranks, run_script

from das.engine.build import build_engine
from das.engine.settings import EngineSettings
from experiments.policies import cached_folder
from experiments.run.environment import set_environment
from experiments.run.processes import warm_context

set_environment(int(os.environ.get("OMP_NUM_THREADS") or 1))
# Where das keeps what it compared (das/engine/checked_policies.py): tests leave the user's own alone.
os.environ.setdefault("XDG_STATE_HOME", str(Path(__file__).resolve().parents[1] / ".pytest_cache" / "state"))
settings.register_profile("untimed", deadline=None)  # a first example compiles C; no test is timed
settings.register_profile("long", deadline=None, max_examples=20_000)  # --hypothesis-profile=long, by hand
settings.load_profile("untimed")
CLUSTER, NIGHTLY = "tests/cluster/", "tests/nightly/"
# What takes longest begins first, so that no process is left alone with it in the end.
LONG = (
    CLUSTER,
    *("tests/trl/", "tests/identity/", "tests/engine/", "tests/experiments/tasks/", "tests/experiments/run/"),
    *("tests/experiments/problem_sets/", "tests/experiments/heads/", "tests/test_", "tests/rewards/"),
    *("tests/verify/", "tests/weights/"),
)
FEW_BLOCKS = "+engine.extra.num_gpu_blocks_override=256"  # of 128 tokens; clusters have many engines
# A comparison with evaluations.
COMPARED = [
    *SIZES, *GIVEN_PRICES, "data.problems=4", f"trainer.max_steps={COMPARED_STEPS}", "trainer.learning_rate=0.0003",
    STOPS, "checkpoint.every=2", "eval.every=2", "eval.problems=3", "eval.samples=4", "eval.k=[2,3]", FEW_BLOCKS,
]  # fmt: skip
# A training of two ranks with an engine each.
RANKS_STEPS = 4  # of 2 an epoch
RANKS = [
    *SIZES, "task=train", "engine.processes=2", "wandb=off", "budget=fixed", "budget.tokens=8", "data.problems=8",
    f"trainer.max_steps={RANKS_STEPS}", "trainer.learning_rate=0.01", "checkpoint.every=1", FEW_BLOCKS,
    "drafter.remember=distributions",
]  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs(config), "costs")


@pytest.hookimpl(optionalhook=True)  # without xdist there is no such hook
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """All tests of clusters run in one process, one after the other, and those of any other file in one process each.

    Each looks whether it leaves processes behind, and two clusters on two cores make each other's engines silent.
    """
    from xdist.scheduler import LoadFileScheduling

    class OneClusterAtATime(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return CLUSTER if nodeid.startswith((CLUSTER, f"{NIGHTLY}cluster/")) else str(super()._split_scope(nodeid))

    config.option.loadscopereorder = False  # xdist would begin with the files that have the most tests
    return OneClusterAtATime(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of LONG come first, in its order. Those of NIGHTLY are slow, too."""
    for item in items:
        if item.nodeid.startswith(NIGHTLY):
            item.add_marker("nightly")
        if item.get_closest_marker("nightly"):
            item.add_marker("slow")
    places = {item: [item.nodeid.startswith(folder) for folder in (*LONG, "")].index(True) for item in items}
    items.sort(key=places.__getitem__)


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Directory of a two-layer Qwen3 with random weights and the small policy's tokenizer."""
    return random_policy(tmp_path_factory.mktemp("tiny_policy"))


@pytest.fixture(scope="session")
def repetitive_policy(tiny_policy: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny policy, sharper: it repeats itself, so that something can be drafted."""
    folder = tmp_path_factory.mktemp("policies") / "repetitive"
    copytree(tiny_policy, folder)
    return sharpened(folder)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all test processes of the session share."""
    root = tmp_path_factory.getbasetemp()
    return root.parent if "PYTEST_XDIST_WORKER" in os.environ else root


@pytest.fixture(scope="session")
def made_once(shared: Path) -> Callable[..., Path]:
    """Calls a function with a folder to fill, unless another test has done so under the same name; returns the folder.
    All test processes share it. Nobody may change what is in it."""
    return lambda name, make: cached_folder(shared / "made_once" / name / "made", make)


@pytest.fixture(scope="session")
def policies(made_once: Callable[..., Path], tiny_policy: str, repetitive_policy: str) -> Callable[[str], str]:
    """Gives the folder of a policy by its name."""

    def deep(folder: Path) -> None:
        random_policy(folder, num_hidden_layers=4)  # three auxiliary layers
        sharpened(folder)

    makers = {"deep": deep, "mtp": mtp_policy}
    makers["draft"] = lambda folder: random_policy(folder, num_hidden_layers=1, hidden_size=32)
    there = {"tiny": tiny_policy, "repetitive": repetitive_policy}
    return lambda name: there[name] if name in there else str(made_once(f"{name}_policy", makers[name]))


@pytest.fixture(scope="session")
def runs(
    made_once: Callable[..., Path], in_process: Callable[..., Any], policies: Callable[[str], str], shared: Path
) -> Callable[[str], Path]:
    """Gives the folder of a run of tests/runs.py by its name."""

    def folder_of(name: str) -> Path:
        run, policy = RUNS[name], policies(RUNS[name].policy)
        whole = folder_of(run.equals) if run.start else None
        further = [f"cache={shared / 'cache'}"]
        if run.arm == "draft_model":
            further.append(f"++arm.speculative.model={policies('draft')}")
        return made_once(f"run_{name}", lambda folder: in_process(make, name, policy, whole, folder, *further))

    return folder_of


@pytest.fixture(scope="session")
def compared(made_once: Callable[..., Path], repetitive_policy: str) -> Path:
    """The run COMPARED of four arms. The file `printed` holds what it printed."""
    settings = ["arms=[none,stock,das,ngram]", f"policy.path={repetitive_policy}"]

    def make(folder: Path) -> None:
        printed = run_script("run.py", *settings, *COMPARED, f"hydra.run.dir={folder}")
        (folder / "printed").write_text(printed)

    return made_once("compared", make)


@pytest.fixture(scope="session")
def ranks_run(made_once: Callable[..., Path], repetitive_policy: str) -> Path:
    """The run RANKS of the arm das."""
    start = [*RANKS, "arm=das", f"policy.path={repetitive_policy}"]
    return made_once("ranks", lambda folder: run_script(*TWO_RANKS, "run.py", *start, f"hydra.run.dir={folder}"))


@pytest.fixture(scope="session")
def in_one_process(made_once: Callable[..., Path], repetitive_policy: str) -> Any:
    """What rank_run.py does in a single process, without drafts."""
    folder = made_once("in_one_process", lambda folder: run_script(RANK_RUN, "none", repetitive_policy, folder))
    (done,) = of_ranks(folder, "none")
    return done


def recorded_sampling(run: Path) -> list[tuple[str, int]]:
    """The distributions and the seed of each recorded response, in the order of rows and steps."""
    rows: list[tuple[str, int]] = []
    for file in sorted((run / "rollouts").glob("step_*.jsonl.gz")):
        with gzip.open(file, "rt") as lines:
            rows += [(row["distributions"], row["seed"]) for row in map(json.loads, lines)]
    return rows


@pytest.fixture(scope="session")
def in_process() -> Iterator[Callable[..., Any]]:
    """Calls a function in another process, the same for all calls: a fork of one that has imported vLLM and TRL."""
    with ProcessPoolExecutor(1, warm_context()) as pool:
        yield lambda function, *args: pool.submit(function, *args).result()


def in_a_fork(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in a process of its own: a fork of one that has imported vLLM and TRL."""
    with ProcessPoolExecutor(1, warm_context()) as pool:
        return pool.submit(function, *args).result()


def sharpened(folder: Path) -> str:
    """Make a tiny policy repeat itself. Returns the directory."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] *= 4
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def random_policy(folder: Path, **sizes: int) -> str:
    """Write a tiny Qwen3 with random weights; `sizes` override fields of its config. Returns the directory."""
    from experiments.policies.problems import make_problems
    from experiments.policies.train import train_tokenizer

    mix = {2: 0.20, 3: 0.36, 4: 0.20, 5: 0.10, 6: 0.07, 7: 0.04, 8: 0.03}
    tokenizer = train_tokenizer(problem.question for problem in make_problems("arithmetic", 20, 1, mix, "training"))
    written("Qwen3", tokenizer, folder, **{"head_dim": 32, **sizes})
    tokenizer.save_pretrained(folder)
    return str(folder)


def mtp_policy(folder: Path) -> str:
    """Write a tiny Qwen2 with random weights and an MTP layer, in the form of MiMo. Returns the directory."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config

    from experiments.heads.files import LAYERS, put_back

    # transformers loads the tokenizer of any Qwen2 as Qwen2's class, which splits numbers and has one more token.
    random_policy(folder)
    Qwen2Config().save_pretrained(folder)
    model = written("Qwen2", AutoTokenizer.from_pretrained(folder), folder)
    sharpened(folder)
    layer = model.model.layers[0].state_dict()
    layer |= {f"{name}_layernorm.weight": torch.full((64,), 2.0) for name in ("token", "hidden", "final")}
    layer["input_proj.weight"] = torch.randn(64, 128) / 128**0.5
    put_back(folder, [(f"{LAYERS}0.{name}", tensor.clone()) for name, tensor in layer.items()])
    return str(folder)


def written(kind: str, tokenizer: Any, folder: Path, **sizes: int) -> Any:
    """Write a tiny policy of this kind with random weights. Returns the model."""
    import torch
    import transformers

    torch.manual_seed(0)
    defaults = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 96,
        "max_position_embeddings": 512,
    }
    config = getattr(transformers, f"{kind}Config")(
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **{**defaults, **sizes},
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.normal_(0.0, 0.15)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    return model


RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(6, 250, size=size).tolist() for size in (3, 40, 90, 17)]
SMALL: dict[str, Any] = {  # settings of a small engine
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 16,
    "drafter": {"window": 4, "min_prob": 0.005},
    "budget": {"name": "fixed", "tokens": 8},
    "extra": {"num_gpu_blocks_override": 256},  # of 128 tokens; a GiB of cache takes half a second to clear
}


class Engines:
    """Builds one engine at a time and frees it before the next."""

    def __init__(self) -> None:
        self.llm: Any = None
        self.built: Any = None  # policy and settings of the engine
        self.proposers = 0

    def kept(self, policy: str, **settings: Any) -> Any:
        """The engine that was built last, with an empty cache, if it has these settings; otherwise a new engine."""
        if self.llm is None or self.built != (policy, settings):
            return self.build(policy, **settings)
        self.llm.reset_prefix_cache()
        return self.llm

    def fresh(self, policy: str, **settings: Any) -> Any:
        """The same, with a new drafter."""
        before, llm = self.llm, self.kept(policy, **settings)
        if llm is before:
            self.proposers += 1
            llm.collective_rpc("das_use_proposer", args=(f"fresh {self.proposers}", None))
        return llm

    def build(self, policy: str, **settings: Any) -> Any:
        """An engine for `policy`; `settings` override those of SMALL."""
        from das.engine.install import install  # here, because it imports vLLM, which most tests do without

        install()
        self.close()
        self.built = policy, settings
        try:
            self.llm = build_engine(EngineSettings(model=policy, **{**SMALL, **settings}))
        except Exception:
            self._clean()  # a worker that refused the engine has process groups already
            raise
        return self.llm

    def close(self) -> None:
        if self.llm is not None:
            with patch("gc.collect"):  # three times .4 s; build_engine collects what is left
                self.llm.llm_engine.engine_core.shutdown()
            self.llm = None

    def _clean(self) -> None:
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        cleanup_dist_env_and_memory()
        gc.collect()


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    """See Engines."""
    found = Engines()
    yield found
    found.close()


def roll(
    llm: Any,
    prompts: Sequence[list[int]],
    params: Sequence[Any],
    problems: Sequence[str],
    clock: int,
    evaluation: bool = False,
) -> Any:
    """Generate with each request's own parameters; returns (tokens, log-probs of the tokens, the meter's report)."""
    from das.verify.admission import PROBLEM_KEY

    for own, problem in zip(params, problems, strict=True):
        own.extra_args = {**(own.extra_args or {}), PROBLEM_KEY: problem}
    llm.collective_rpc("das_begin_rollout", args=(len(prompts), evaluation))
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], list(params), use_tqdm=False)
    report = llm.collective_rpc("das_end_rollout", args=(clock,))[0]
    tokens = [list(output.outputs[0].token_ids) for output in outputs]
    logprobs = [
        None
        if output.outputs[0].logprobs is None
        else [
            sorted((token, entry.logprob) for token, entry in position.items())
            for position in output.outputs[0].logprobs
        ]
        for output in outputs
    ]
    return tokens, logprobs, report


@pytest.fixture(scope="session")
def code_reward() -> Iterator[Any]:
    """The reward of code, with two judges."""
    from rewards.code import CodeReward
    from rewards.limits import Limits

    reward = CodeReward(2, Limits())
    yield reward
    reward.close()


@pytest.fixture(autouse=True)
def own_wandb_process() -> Iterator[None]:
    """The address of a W&B process that a test started is not for the runs of the next one: it may be gone."""
    yield
    os.environ.pop("WANDB_SERVICE", None)
