"""Bad configs and policies, by the kinds of docs/exactness.md. Bad files and runs are in bad_records.py."""

import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from damages import Damage, halved, removed, written
from safetensors.torch import load_file, save_file

from experiments.harness import resume

Made = tuple[list[str], str]  # a command line, and words that the error line must contain
Make = Callable[[Path, Path], Made]  # makes a case from an empty folder and a policy
CASES: dict[str, list[Made | Make]] = {}  # kind of input, as in docs/exactness.md
WEIGHTS = "model.safetensors"
SHORT = ("engine.max_model_len=320", "trainer.max_completion_length=64")  # what the tests' policy can hold


class Opened:
    """A pickle that ends the process with exit code 77 when it is opened."""

    def __reduce__(self) -> Any:
        return (os._exit, (77,))


def kind(name: str, *cases: Made) -> Callable[[Make], Make]:
    """Add cases to a kind. As a decorator it adds a case that needs files."""
    CASES.setdefault(name, []).extend(cases)

    def add(make: Make) -> Make:
        CASES[name].append(make)
        return make

    return add


# ---- config: more keys are in test_known_keys.py, more numbers in test_values.py ----

kind(
    "unknown key",
    (["trainer.max_step=3"], "trainer.max_step: there is no such setting; did you mean trainer.max_steps?"),
    (["trainer.top_p=0.95"], "use +trainer.top_p=0.95"),  # TRL knows it
    (["cluster=ray", "+cluster.silent=30"], "cluster.silent: there is no such setting; did you mean cluster.silent_s?"),
    (["+trust=1", "task.nosuch=2"], "nosuch"),
    (["+trust=1"], "trust: there is no such setting; look at configs/config.yaml"),
)
kind(
    "unknown key",
    (["+trainer.shuffle_dataset=false"], "trainer.shuffle_dataset: a run does not take this argument"),
    (["+trainer.remove_unused_columns=true"], "trainer.remove_unused_columns: a run does not take this argument"),
    (["+trainer.resume_from_checkpoint=x"], "resume=FOLDER goes on with a run"),
    (["+trainer.vllm_gpu_memory_utilization=2"], "the engine's settings are in configs/engine"),
)
kind(
    "key of another choice",
    (["cluster.engines=2"], "cluster.engines: only cluster=ray has this setting"),
    (["cluster=none", "+cluster.engines=2"], "cluster.engines: only cluster=ray has this setting"),
    (["budget=fixed", "+budget.short=3"], "budget.short: only budget=classes has this setting"),
    (["task=rollout", "task.samples=2"], "task.samples: only task="),
    (
        ["arms=[none,das_self]", "arm.self_draft.weights=w4"],
        "in a comparison give +vary.arm.self_draft.weights=[VALUE]",
    ),
)
kind(
    "unknown choice",
    (["budget=psychic"], "budget=psychic: choose classes"),
    (["policy=3"], "policy=3: choose qwen3_8b"),
    (["budget=true"], "budget=true: choose classes"),
    (["setting=null"], "(leave it out for none)"),
    (["setting=huge"], "setting=huge: choose agent_small"),
    (["experiment=fig99"], "experiment=fig99: choose ablation_batch"),
    (["task=experiment", "experiment=das_fig12", "profile=huge"], "profile=huge: choose small, smoke, paper"),
    (["task=fly"], "unknown task 'fly'"),
    (["arms=[none,psychic]"], "unknown arm 'psychic'"),
    (["arms=[none,mtp_online]"], "arm=mtp_online: arm=mtp drafts with the same layer"),
    (["arms=[none,das]", "++arm.online=true"], "arm.online=true: only an EAGLE-3 head learns in the run"),
    (["arms=[none,none]"], "name each arm once"),
    (["drafter.remember=everything"], "remember must be one of"),
    (["drafter.scope=own"], "drafter.scope=own: leave it out"),
    (["experiment=das_fig6"], "`task=reproduce paper=das` replays DAS Fig 6"),
    (["arms=[stock,das]"], "stock samples other tokens, so it cannot be the baseline"),
    (["task=audit", "arm=stock"], "arm=stock drafts nothing, so there is nothing to audit"),
    (["task=audit", "arm=none"], "nothing to audit"),
    (["task=audit", "engine.exact=distribution"], "task=audit compares tokens, and engine.exact=distribution"),
    (["task=kill_test", "engine.exact=distribution"], "set engine.exact=bits"),
    (["engine.exact=all"], "exact='all': choose bits or distribution"),
    (["engine.exact=null"], "engine.exact"),
    (["engine.dtype=foo"], "engine.dtype=foo: choose float32, bfloat16, float16, auto"),
    (["+trainer.loss_type=foo"], "trainer.loss_type=foo: choose grpo"),
    (["+head=-inf"], "+head=-inf: choose eagle3"),
    (["task.name=foo"], "task.name=foo: choose with task=NAME, one of "),
    (["++policy.name=foo"], "policy.name=foo: choose with policy=NAME, one of qwen3_8b"),
    (["++data.name=reasoning_gym"], "data.task is missing, which data=reasoning_gym has"),
    (["++reward.name=foo"], "reward.name=foo: choose with reward=NAME, one of brevity"),
    (["++cluster.name=foo"], "cluster.name=foo: choose with cluster=NAME, one of none, ray"),
    (["++budget.name=foo"], "budget.name=foo: choose with budget=NAME, one of classes"),
    (["++budget.name=a/b:c"], "budget.name=a/b:c: must be module:Class"),
    (["~data.kinds"], "data.kinds is missing, which data=puzzles has"),
    (["drafter.warm=a:b"], "drafter.warm=a:b does not exist"),
    (["schedule=random"], "schedule=random: choose longest_first or given"),
    (["drafter.unit=hour"], "drafter.unit=hour: choose epoch or step"),
    (["wandb=maybe"], "wandb=maybe: choose one of online, offline, off"),
)
kind(
    "text for a number",
    (["trainer.learning_rate=fast"], "trainer.learning_rate=fast: must be a number"),
    (["task=rollout", "task.steps=some"], "task.steps=some: must be a whole number"),
    (["task=advise", "task.step_ms=[[a,b]]"], "task.step_ms=[['a', 'b']]: must be a list (a number"),
)
kind(
    "number for text, list or group",
    (["policy.path=7"], "policy.path=7: must be text"),
    (["cluster.name=[1]"], "cluster.name=[1]: must be text, one of configs/cluster"),
    (["task=train", "+trainer.top_p=foo"], "trainer.top_p=foo: must be a number"),
    (["wandb_project=7"], "wandb_project=7: must be text"),
    (["arms=das"], "arms=das: must be a list (text)"),
    (["checkpoint=7"], "checkpoint=7: must be a group of settings"),
    (["engine.enforce_eager=7"], "engine.enforce_eager=7: must be true or false"),
)
kind("list for a number", (["budget.tokens=[1,2]"], "budget.tokens=[1, 2]: must be a whole number"))
kind(
    "group of settings for a single value",
    (["data.kinds.walk={a:1}"], "data.kinds.walk: must be a whole number, not a group of settings"),
    (["+drafter.warm={name:7}"], "drafter.warm: must be null or text, not a group of settings"),
    (["task=train", "++engine.extra=1"], "engine.extra=1: must be a group of settings"),
    (["+trainer.model_init_kwargs=7"], "trainer.model_init_kwargs=7: must be a group of settings"),
    (["task=train", "+arm.budget.short=7"], "arm.budget.name must be given"),
    (["task=train", "+arm.budget.name={}"], "arm.budget.name must be given"),
)
kind("null for a number", (["trainer.learning_rate=null"], "trainer.learning_rate=null: must be a number"))
kind(
    "NaN or infinite",
    (["trainer.learning_rate=nan"], "trainer.learning_rate=nan: must be a number from 0 to 1"),
    (["task=advise", "task.rest_s=nan"], "task.rest_s=nan"),
)
kind(
    "negative",
    (["drafter.window=-1"], "drafter.window=-1"),
    (["budget=fixed", "budget.tokens=-2"], "budget.tokens=-2"),
    (["trainer.max_steps=-1"], "trainer.max_steps=-1: must be a number from 1"),
    (["+trainer.num_iterations=0"], "trainer.num_iterations=0: must be a number from 1"),
    (["data=calculator", "data.weights=[1,-1,1,1]"], "data.weights=[1, -1, 1, 1]"),
)
kind(
    "zero",
    (["engine.max_num_seqs=0"], "engine.max_num_seqs=0"),
    (["data=calculator", "data.weights=[0,0,0]"], "data.weights=[0, 0, 0]"),
    (["cluster=ray", "task=fault_test", "task.faults=0"], "task.faults=0: must be at least 1"),
    (["task=kill_test", "task.runs=0"], "task.runs=0: must be at least 1"),
    (["task=policy", "task.problems=0"], "task.problems=0: must be at least 1"),
    (["trainer.temperature=0"], "a number from 0.01 to 100; 0, greedy, is for task=evaluate and eval.temperature"),
    (
        ["task=evaluate", "trainer.temperature=0.001"],
        "trainer.temperature=0.001: must be a number from 0.01 to 100; 0,",
    ),
    (["eval.temperature=-1"], "eval.temperature=-1: must be a number from 0.01 to 100; 0, greedy, is for"),
    (["task=evaluate", "trainer.temperature=false"], "trainer.temperature=False: must be a number"),
    (["task=evaluate", "task.problems=0"], "task.problems=0: must be at least 1"),
    (["task=evaluate", "task.k=[0]"], "task.k=[0]: must be a number from 1"),
)
kind("absurdly large", (["trainer.max_steps=1000000000000"], "trainer.max_steps=1000000000000: must be a number from"))
kind("fraction for a whole number", (["trainer.max_steps=2.5"], "trainer.max_steps=2.5: must be a whole number"))
kind(
    "too few KV blocks for a branch",
    (["engine.branch_blocks=3"], "branch_blocks=3: a draft that branches needs 8; set it to a whole number of 8 or"),
)
kind(
    "rollouts ahead of a training that cannot have them",
    (["setting=agent_small", "trainer.lag=1"], "trainer.lag=1: rollouts in several turns call tools"),
    (["trainer.lag=2", "+trainer.vllm_enable_sleep_mode=true"], "set vllm_enable_sleep_mode=false"),
    (["trainer.lag=2", "trainer.vllm_importance_sampling_correction=false"], "the loss needs the correction"),
    (["trainer.lag=1", "+trainer.num_iterations=2"], "each step needs a rollout of its own"),
    (["task=train", "trainer.lag=1", "engine.processes=2", "checkpoint.every=0"], "engine.processes=2"),
    (["engine.own_process=true", "setting=agent_small"], "engine.own_process=true: rollouts in several turns"),
    (["task=rollout", "trainer.lag=1"], "trainer.lag=1: task=rollout trains nothing; leave it out"),
    (["task=evaluate", "trainer.lag=1"], "trainer.lag=1: task=evaluate trains nothing; leave it out"),
    (["task=rollout", "engine.own_process=true"], "engine.own_process=true: task=rollout trains nothing"),
    (["arms=[none,stock]", "engine.own_process=true"], "arm=stock rolls out in the trainer's process"),
)
kind(
    "groups that this kind of run cannot put aside",
    (["trainer.partial=1"], "trainer.partial=1: 24 responses decode at the same time; set engine.max_num_seqs=24"),
    (["trainer.partial=1", "trainer.lag=1"], "set trainer.lag=0"),
    (["setting=agent_small", "trainer.partial=1"], "trainer.partial=1: rollouts in several turns call tools"),
    (["trainer.partial=1", "engine.own_process=true"], "set engine.own_process=false cluster=none"),
    (["trainer.partial=1", "cluster=ray"], "set engine.own_process=false cluster=none"),
    (["arms=[none,stock]", "trainer.partial=1", "engine.max_num_seqs=24"], "arm=stock has no noise by position"),
    (["trainer.partial=3", "engine.processes=2"], "trainer.partial=3: 2 processes put equally many groups aside; set"),
    (["trainer.partial=2", "engine.processes=2"], "trainer.partial=2: 24 responses decode at the same time"),
    (["task=rollout", "trainer.partial=1"], "only compare and train put groups aside; leave it out"),
    (["task=rollout", "trainer.partial_tokens=9"], "trainer.partial_tokens=9: only compare and train put groups"),
    (["trainer.partial_tokens=9", "trainer.lag=1"], "trainer.partial_tokens=9: what is put aside continues under the"),
    (["trainer.partial_tokens=9", "engine.max_num_seqs=8"], "trainer.partial_tokens=9: 16 responses decode at the"),
    (["trainer.partial_tokens=-1"], "trainer.partial_tokens=-1: must be a number from 0 to 4194304"),
    (["trainer.partial_tokens=long"], "trainer.partial_tokens=long: must be a whole number"),
)
kind(
    "groups that this kind of run cannot draw again",
    (["trainer.dynamic_sampling=2", "trainer.lag=1"], "trainer.dynamic_sampling=2: further draws sample with the new"),
    (["trainer.dynamic_sampling=2", "trainer.partial=1", "engine.max_num_seqs=24"], "set trainer.partial=0"),
    (["trainer.dynamic_sampling=2", "trainer.partial_tokens=9"], "set trainer.partial_tokens=0"),
    (["setting=agent_small", "trainer.dynamic_sampling=1"], "trainer.dynamic_sampling=1: rollouts in several turns"),
    (["trainer.dynamic_sampling=1", "+trainer.num_iterations=2"], "each step needs a rollout of its own"),
    (["trainer.dynamic_sampling=1", "engine.processes=2", "checkpoint.every=0"], "engine.processes=2"),
    (["task=rollout", "trainer.dynamic_sampling=1"], "task=rollout trains nothing; leave it out"),
)
kind(
    "values that contradict each other",
    (["task=train", "arm=das", "budget=none"], "budget=none: arm das would draft nothing"),
    (["arms=[none,das_self]", "budget=none"], "budget=none: arm das_self would draft nothing"),
    (["+engine.extra.speculative_config=null"], "engine.extra.speculative_config: the arm makes vLLM's"),
    (["trainer.max_completion_length=1024"], "trainer.max_completion_length=1024 leaves no room for a prompt"),
    (["trainer.per_device_train_batch_size=10"], "must be a multiple of trainer.num_generations=8"),
    (["data=calculator", "data.weights=[1]"], "data.chain_steps and data.weights must be equally long"),
    (["arm=ngram"], "arm=ngram: task=compare has several, arms=['none', 'das']; name it there, or task=train"),
    (["task=rollout", "eval.every=2"], "eval.every=2: task=rollout trains nothing; set eval.every=0"),
    (["task=rollout", "setting=agent_small"], "task=rollout calls no tools; choose compare or train"),
    (["setting=agent_small", "eval.every=2"], "evaluations call no tools, which data=calculator needs"),
    (["eval.every=2", "eval.data=calculator"], "evaluations call no tools, which data=calculator needs"),
    (["eval.every=2", "eval.data=reasoning_gym"], "also say which of its tasks, eval.task=NAME"),
    (["eval.every=2", "eval.task=spell_backward"], "only eval.data=reasoning_gym has tasks, not puzzles"),
)
kind(
    "kinds of puzzles that do not exist or never come",
    (["+data.kinds.chess=1"], "data.kinds: there is no kind 'chess', choose among pair"),
    (["data.kinds.pair=0", "data.kinds.triple=0", "data.kinds.walk=0"], "at least one must be above 0"),
)
kind(
    "draft head that cannot be trained or used so",
    (["arms=[none,eagle3_online]", "head.warm=hot"], "head.warm=hot: choose in_domain or general"),
    (["arms=[none,eagle3_frozen]", "head.tokens=8"], "head.tokens: eagle3 drafts 1 to 7 tokens a pass, not 8"),
    (["task=rollout", "arm=eagle3_frozen"], "head.path=null: task=rollout makes no head; give a head's folder"),
    (["arms=[none,eagle3_online]", "head.share=0"], "head.share=0: must be a number from 1e-06 to 1"),
)
MTP = ["task=rollout", "arm=mtp"]
kind(
    "MTP layer that cannot draft so",
    (["arms=[none,mtp]"], "arm mtp: policy=small has no MTP layer; name one that has by policy.path"),
    (
        [*MTP, "policy.path=folder", "arm.speculative.num_speculative_tokens=8"],
        "mtp drafts 1 to 7 tokens a pass, not 8",
    ),
    ([*MTP, "policy=smollm2"], "arm mtp: policy=smollm2 has no MTP layer"),
)
kind(
    "self-draft that cannot be",
    (["task=rollout", "arm=self_draft", "arm.self_draft.weights=w3"], "give weights, one of w8a8, w4"),
    (["task=rollout", "arm=das_self", "arm.self_draft.passes=0"], "self_draft.passes=0: must be 1 or more"),
    (["task=rollout", "arm=self_draft", "drafter.warm=h.npz"], "self_draft drafts without a history; use arm=das_self"),
    (["arms=[none,das_self]", "engine.branch_blocks=8"], "branch_blocks=8: das_self drafts chains only; set it to 0"),
)
kind(
    "GPU that is missing or lacks something",
    (["task=check_gpu", "task.device=cuda"], "task.device=cuda: no NVIDIA driver is loaded"),
    (["task=check_gpu", "task.device=gpu"], "task.device=gpu: choose auto, cuda or cpu"),
    (["task=check_gpu", "task.device=cpu", "task.parts=[smapler]"], "choose from sampler, first_tokens"),
)
kind(
    "cluster that cannot be",
    (["cluster=ray", "cluster.engines=0"], "cluster.engines=0: must be a number from 1 to 4096"),
    (["cluster=ray", "cluster.address=here"], "cluster.address=here: must be HOST:PORT of a Ray"),
    (["cluster=ray", "cluster.address=127.0.0.1:1"], "cluster.address=127.0.0.1:1: no Ray answers there"),
    (["cluster=ray", "cluster.silent_s=0"], "cluster.silent_s=0: must be a number from 0.1 to 86400"),
    (["cluster=ray", "task=rollout", "arm=stock"], "cluster=ray: arm=stock is vLLM without das"),
    (["cluster=ray", "engine.own_process=true"], "engines of cluster=ray have processes of their own; leave it out"),
    (["cluster=ray", "data=calculator"], "cluster=ray: rollouts in several turns do not run on a cluster yet"),
    (["cluster=ray", "drafter.warm=history.npz"], "cluster=ray: engines of a cluster begin without a history"),
    (
        ["cluster=none", "task=fault_test"],
        "cluster=none: task=fault_test strikes engines of a cluster; set cluster=",
    ),
    (["cluster=ray", "task=fault_test", "cluster.address=127.0.0.1:1"], "no Ray answers there"),
    (["cluster=ray", "task=kill_test", "cluster.address=127.0.0.1:1"], "no Ray answers there"),
    (["cluster=ray", "task=reproduce", "cluster.address=127.0.0.1:1"], "no Ray answers there"),
    (["cluster=ray", "experiment=nemo_rl_async"], "cluster=ray have processes of their own; leave it out"),
)
kind("no KEY=VALUE", (["trainer.max_steps"], "trainer.max_steps"), (["budget.tokens=[1"], "budget.tokens=[1"))
kind(
    "vary that varies nothing",
    (["vary=5"], "vary=5: must be a group of settings"),
    (["+vary.drafter.window=[wide]"], "drafter.window=wide: must be a whole number"),
)
kind(
    "vary that leaves no common work",
    (["+vary.trainer.lag=[0,1]"], "run it once for each value: python run.py -m trainer.lag=0,1"),
    (["+vary.cluster=[none,ray]"], "run it once for each value: python run.py -m cluster=none,ray"),
)
kind(
    "model code to be run",
    (["+trainer.trust_remote_code=true"], "trainer.trust_remote_code=true: code that comes with a model is never run"),
    (["+trainer.model_init_kwargs={trust_remote_code:true}"], "trainer.model_init_kwargs.trust_remote_code=true"),
    (["+trainer.model_init_kwargs={use_safetensors:false}"], "a pickle is never opened"),
    (["task=rollout", "+engine.extra.trust_remote_code=true"], "engine.extra.trust_remote_code=true"),
    (["task=rollout", "+engine.extra.load_format=pt"], "engine.extra.load_format=pt: weights are read by auto, safe"),
    (
        ["task=evaluate", "+engine.extra.worker_cls=evil.Worker"],
        "engine.extra.worker_cls=evil.Worker: an engine of das",
    ),
    (["arms=[none,draft_model]", "+vary.engine.extra.trust_remote_code=[true]"], "engine.extra.trust_remote_code=true"),
    (
        ["task=rollout", "arm=draft_model", "+arm.speculative.draft_load_config={load_format:npcache}"],
        "arm.speculative.draft_load_config.load_format=npcache",
    ),
)


# ---- files ----


def with_head(policy: Path, folder: Path) -> list[str]:
    """A command line with an arm that drafts with the head in `folder`."""
    return ["arms=[none,eagle3_frozen]", f"policy.path={policy}", f"head.path={folder}", *SHORT]


kind(
    "draft head that is missing",
    (["task=train", "arm=eagle3_online", "head.path=/nonexistent"], "head /nonexistent: config.json is missing"),
)(lambda tmp, policy: (with_head(policy, tmp / "nowhere"), "nowhere: config.json is missing or damaged"))


@kind("draft head of another policy")
def head_of_another_shape(tmp: Path, policy: Path) -> Made:
    vocabulary = json.loads((policy / "config.json").read_text())["vocab_size"]
    config = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 32, "vocab_size": vocabulary}
    (tmp / "config.json").write_text(json.dumps(config))
    (tmp / "model.safetensors").touch()
    return with_head(policy, tmp), "has hidden size 32, the policy 64: it belongs to another policy"


def own_config(tmp: Path, content: bytes) -> list[str]:
    """Write a config file of the user's, budget/mine.yaml. Returns the command line that chooses it."""
    (tmp / "mine" / "budget").mkdir(parents=True)
    (tmp / "mine" / "budget" / "mine.yaml").write_bytes(content)
    return [f"hydra.searchpath=[file://{tmp / 'mine'}]", "budget=mine"]


kind("config file with a syntax error")(
    lambda tmp, policy: (own_config(tmp, b"name: fixed\ntokens: [1, 2\n"), "mine.yaml")
)
kind("config file that is not UTF-8")(
    lambda tmp, policy: (own_config(tmp, "name: größe\n".encode("latin-1")), "chooses a config file that is not UTF-8")
)
kind(
    "out= that cannot be written",
    (["out=/dev/null"], "cannot be created (Not a directory): set out=OTHER_DIR"),
    (["out=/proc/nowhere"], "/proc/nowhere"),
)
kind("resume= of what is no run", (["resume=/nonexistent"], "/nonexistent: no such folder"))
kind("resume= of what is no run")(lambda tmp, policy: ([f"resume={tmp}"], "no run of task=train or task=compare"))


@kind("resume= of what is no run")
def other_overrides(tmp: Path, policy: Path) -> Made:
    (tmp / "overrides.json").write_text("7")
    return [f"resume={tmp}"], "overrides.json"


@kind("resume= of what is no run")
def not_resumable(tmp: Path, policy: Path) -> Made:
    resume.remember(tmp, ["task=rollout"])
    return [f"resume={tmp}"], "task=rollout cannot be resumed"


@kind("run folder of somebody else")
def others_settings(tmp: Path, policy: Path) -> Made:
    (tmp / "evil.py").write_text("import os\nos._exit(77)\n")
    settings = ["task=train", "reward=own", "reward.function=evil:f", "data.system=\x1b[2J"]
    (tmp / "overrides.json").write_text(json.dumps(settings))
    return [f"resume={tmp}"], "no signature of yours"


@kind("run folder of somebody else")
def link_out(tmp: Path, policy: Path) -> Made:
    (tmp / "run").mkdir()
    (tmp / "run" / "metrics.jsonl").symlink_to(tmp / "precious.txt")
    return [f"resume={tmp / 'run'}"], "metrics.jsonl is a link that leads out of the run folder"


@kind("run folder of somebody else")
def link_for_a_lock(tmp: Path, policy: Path) -> Made:
    (tmp / "run").mkdir()
    (tmp / "run" / "lock").symlink_to(tmp / "precious.txt")
    return [f"resume={tmp / 'run'}"], "lock is a link: remove it"


@kind("run folder of somebody else")
def module_beside_the_run(tmp: Path, policy: Path) -> Made:
    (tmp / "beside.py").write_text("import os\nos._exit(77)\n")
    sys.path.append(str(tmp))
    return ["reward=own", "reward.function=beside:f", f"out={tmp}"], "from which no code is run"


# ---- policies ----

kind("policy that is missing", (["policy.path=/nonexistent"], "/nonexistent does not exist"))


@kind("policy that is a symlink loop")
def looping_policy(tmp: Path, policy: Path) -> Made:
    (tmp / "a").symlink_to(tmp / "b")
    (tmp / "b").symlink_to(tmp / "a")
    return [f"policy.path={tmp / 'a'}"], "does not exist, or is no folder"


def copied(policy: Path, folder: Path, *damages: Damage) -> list[str]:
    """The command line that uses a damaged copy of the policy, written into `folder`."""
    shutil.copytree(policy, folder)
    for damage in damages:
        damage(folder)
    return [f"policy.path={folder}", *SHORT]


def policy_case(label: str, words: str, *damages: Damage, settings: tuple[str, ...] = ()) -> None:
    """Add a case: a policy that is damaged so."""

    @kind(label)
    def make(tmp: Path, policy: Path) -> Made:
        return [*copied(policy, tmp / "policy", *damages), *settings], words


def altered(**values: Any) -> Damage:
    """The damage of other values in config.json."""

    def damage(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return damage


def lost_weight(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


PICKLED, OTHER = "pickle where safetensors is expected", "weights of another architecture"
PICKLE = pickle.dumps(Opened())
ONLY_PICKLE = (removed(WEIGHTS), written("pytorch_model.bin", PICKLE))
LLAMA = altered(model_type="llama", architectures=["LlamaForCausalLM"])
OWN_CODE = (
    written("own.py", b"import os\nos._exit(77)\n"),
    altered(model_type="own", auto_map={"AutoConfig": "own.A", "AutoModelForCausalLM": "own.B"}),
)
LONG = ("engine.max_model_len=9999",)
policy_case("policy without a tokenizer", "has no tokenizer (tokenizer_config.json)", removed("tokenizer*"))
policy_case("policy with a damaged tokenizer", "transformers cannot load it", halved("tokenizer.json"))
policy_case("policy without weights", "no weights: save them as model.safetensors", removed(WEIGHTS))
policy_case("policy with truncated weights", "SafetensorError", halved(WEIGHTS))
policy_case("policy with NaN in its weights", "model.norm.weight in model.safetensors holds NaN", lost_weight)
policy_case(PICKLED, "only pytorch_model.bin, a pickle, which is never opened", *ONLY_PICKLE)
policy_case(PICKLED, "SafetensorError", written(WEIGHTS, PICKLE))
policy_case("config.json that is not JSON", "not a valid JSON file", written("config.json", b"{"))
policy_case(OTHER, "different models: 4 unexpected, such as model.layers.0.self_attn", LLAMA)
policy_case(OTHER, "mismatched, such as model.embed_tokens.weight", altered(hidden_size=128))
policy_case("weights of another vocabulary", "1 mismatched, such as model.embed_tokens", altered(vocab_size=99))
policy_case("architecture nobody knows, with code of its own", "contains custom code", *OWN_CODE)
policy_case("context longer than the policy's", "lower engine.max_model_len=9999", settings=LONG)
policy_case("context longer than the policy's", "lower engine.max_model_len=9999", settings=("task=audit", *LONG))


# ---- draft models ----


def draft_model(policy: Path, *settings: str) -> list[str]:
    return ["task=rollout", "arm=draft_model", f"policy.path={policy}", *SHORT, *settings]


kind(
    "draft model that cannot be",
    (["task=rollout", "arm=draft_model", "arm.speculative.num_speculative_tokens=0"], "=0"),
    (
        ["task=rollout", "arm=draft_model", "arm.speculative.model=/nowhere"],
        "/nowhere does not exist, or has no",
    ),
)(lambda tmp, policy: (draft_model(policy), "only policy=small on puzzles has a draft model"))
kind("MTP layer that cannot draft so")(
    lambda tmp, policy: ([*MTP, f"policy.path={policy}", *SHORT], "has no MTP layer: take another method")
)


@kind("draft model of another vocabulary")
def other_draft_model(tmp: Path, policy: Path) -> Made:
    copied(policy, tmp / "other", altered(vocab_size=7))
    return draft_model(policy, f"arm.speculative.model={tmp / 'other'}"), "knows 7 tokens, the policy"
