"""Bad configs and policies, by the kinds of docs/inputs.md. Bad files and runs are in bad_records.py."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from experiments.harness import resume

Made = tuple[list[str], str]  # a command line, and words that the error line must contain
Make = Callable[[Path, Path], Made]  # makes a case from an empty folder and a policy
CASES: dict[str, list[Made | Make]] = {}  # kind of input, as in docs/inputs.md


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


# ---- config ----

kind(
    "unknown key",
    (["trainer.max_step=3"], "trainer.max_step: there is no such setting; did you mean trainer.max_steps?"),
    (
        ["+trainer.learning_rat=1"],
        "trainer.learning_rat: there is no such setting; did you mean trainer.learning_rate?",
    ),
    (["trainer.top_p=0.95"], "use +trainer.top_p=0.95"),  # TRL knows it
    (["cluster=ray", "+cluster.silent=30"], "cluster.silent: there is no such setting; did you mean cluster.silent_s?"),
    (["+checkpoint.evry=2"], "checkpoint.evry: there is no such setting; did you mean checkpoint.every?"),
    (["+engine.foo=1"], "engine.foo: there is no such setting; look at configs/engine"),
    (["arm=self_draft", "arm.budget.token=3"], "arm.budget.token: there is no such setting; did you mean arm.budget.t"),
    (["+trust=1", "task.nosuch=2"], "nosuch"),
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
    (["setting=huge"], "setting=huge: choose agent_small"),
    (["experiment=fig99"], "experiment=fig99: choose ablation_batch"),
    (["task=experiment", "experiment=das_fig12", "profile=huge"], "profile=huge: choose small, smoke, paper"),
    (["task=fly"], "fly"),
    (["arms=[none,psychic]"], "unknown arm 'psychic'"),
    (["arms=[none,none]"], "each arm once"),
    (["drafter.scope=everything"], "scope must be one of"),
    (["arms=[stock,das]"], "stock samples other tokens, so it cannot be the baseline"),
    (["task=audit", "arm=stock"], "arm=stock drafts nothing, so there is nothing to audit"),
    (["schedule=random"], "schedule=random: choose longest_first or given"),
    (["drafter.unit=hour"], "drafter.unit=hour: choose epoch or step"),
    (["wandb=maybe"], "wandb=maybe: choose one of online, offline, off"),
)
kind(
    "text for a number",
    (["trainer.learning_rate=fast"], "trainer.learning_rate=fast: must be a number"),
    (["engine.threads=two"], "engine.threads=two: must be a whole number"),
    (["drafter.window=wide"], "drafter.window=wide: must be a whole number"),
    (["budget.tokens=many"], "budget.tokens=many: must be a whole number"),
    (["data.problems=few"], "data.problems=few: must be"),
    (["reward.parallel=all"], "reward.parallel=all: must be a whole number"),
    (["checkpoint.every=often"], "checkpoint.every=often: must be a whole number"),
    (["seed=lucky"], "seed=lucky: must be a whole number"),
    (["task=rollout", "task.steps=some"], "task.steps=some: must be a whole number"),
    (["task=advise", "task.step_ms=[[a,b]]"], "task.step_ms=[['a', 'b']]: must be a list (a number"),
)
kind(
    "number for text, list or group",
    (["policy.path=7"], "policy.path=7: must be text"),
    (["wandb_project=7"], "wandb_project=7: must be text"),
    (["arms=das"], "arms=das: must be a list (text)"),
    (["checkpoint=7"], "checkpoint=7: must be a group of settings"),
    (["engine.enforce_eager=7"], "engine.enforce_eager=7: must be true or false"),
)
kind("list for a number", (["budget.tokens=[1,2]"], "budget.tokens=[1, 2]: must be a whole number"))
kind("null for a number", (["trainer.learning_rate=null"], "trainer.learning_rate=null: must be a number"))
kind(
    "NaN or infinite",
    (["trainer.learning_rate=nan"], "trainer.learning_rate=nan: must be a number from 0 to 1"),
    (["trainer.learning_rate=inf"], "trainer.learning_rate=inf"),
    (["drafter.min_prob=nan"], "drafter.min_prob=nan"),
    (["budget.ratio=inf"], "budget.ratio=inf"),
    (["task=advise", "task.rest_s=nan"], "task.rest_s=nan"),
)
kind(
    "negative",
    (["drafter.window=-1"], "drafter.window=-1"),
    (["budget=fixed", "budget.tokens=-2"], "budget.tokens=-2"),
    (["trainer.max_steps=-1"], "trainer.max_steps=-1: must be a number from 1"),
    (["seed=-1"], "seed=-1"),
    (["policy.effort=-0.1"], "policy.effort=-0.1: must be a number from 0.01 to 1"),
    (["trainer.lag=-1"], "trainer.lag=-1: must be a number from 0 to 8"),
    (["data=arithmetic", "data.weights=[1,-1,1,1]"], "data.weights=[1, -1, 1, 1]"),
    (["task=advise", "task.draft_us=-1"], "task.draft_us=-1"),
)
kind(
    "zero",
    (["trainer.per_device_train_batch_size=0"], "trainer.per_device_train_batch_size=0"),
    (["engine.max_num_seqs=0"], "engine.max_num_seqs=0"),
    (["policy.effort=0"], "policy.effort=0: must be a number from 0.01 to 1"),
    (["data=arithmetic", "data.weights=[0,0,0,0]"], "data.weights=[0, 0, 0, 0]"),
    (["cluster=ray", "task=fault_test", "task.faults=0"], "task.faults=0: must be at least 1"),
    (["task=kill_test", "task.runs=0"], "task.runs=0: must be at least 1"),
    (["task=policy", "task.problems=0"], "task.problems=0: must be at least 1"),
    (["task=evaluate", "task.problems=0"], "task.problems=0: must be at least 1"),
    (["task=evaluate", "task.k=[0]"], "task.k=[0]: must be a number from 1"),
)
kind(
    "absurdly large",
    (["trainer.per_device_train_batch_size=1000000000"], "trainer.per_device_train_batch_size=1000000000: must be a"),
    (["trainer.max_steps=1000000000000"], "trainer.max_steps=1000000000000: must be a number from 1 to 10000000"),
    (["engine.max_model_len=1000000000"], "engine.max_model_len=1000000000"),
    (["budget.tokens=1000000"], "budget.tokens=1000000"),
    (["trainer.lag=9"], "trainer.lag=9: must be a number from 0 to 8"),
    (["task=bench_drafter", "task.window=99999999999"], "task.window=99999999999"),
)
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
    "values that contradict each other",
    (["trainer.max_completion_length=1024"], "trainer.max_completion_length=1024 leaves no room for a prompt"),
    (["trainer.per_device_train_batch_size=10"], "must be a multiple of trainer.num_generations=8"),
    (["data=arithmetic", "data.weights=[1]"], "data.chain_steps and data.weights must be equally long"),
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
    (["task=rollout", "arm=das_eagle3"], "head.path=null: task=rollout makes no head; give a head's folder"),
    (["arms=[none,das_eagle3]", "head.tokens=8"], "head.tokens: eagle3 drafts 1 to 7 tokens a pass, not 8"),
    (["arms=[none,das_eagle3]", "engine.branch_blocks=8"], "das_eagle3 drafts chains only; set it to 0"),
)
MTP = ["task=rollout", "arm=mtp"]
kind(
    "MTP layer that cannot draft so",
    (["arms=[none,mtp]"], "arm mtp: policy=small has no MTP layer; take policy=small_mtp"),
    ([*MTP, "policy=small_mtp", "arm.speculative.num_speculative_tokens=8"], "mtp drafts 1 to 7 tokens a pass, not 8"),
    ([*MTP, "policy=small_mtp", "data=calculator"], "is made for data=puzzles and data=arithmetic only"),
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
    (["task=check_gpu", "task.device=cpu", "task.parts=[smapler]"], "choose from environment, sampler"),
)
kind(
    "cluster that cannot be",
    (["cluster=ray", "cluster.engines=0"], "cluster.engines=0: must be a number from 1 to 4096"),
    (["cluster=ray", "cluster.weights=nccl"], "cluster.weights=nccl: must be store, broadcast or null"),
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
    (["+vary.drafter.window=4"], "vary.drafter.window=4: give a list of values"),
    (["+vary.drafter.nosuch=[1,2]"], "drafter.nosuch"),
    (["+vary.drafter.window=[wide]"], "drafter.window=wide: must be a whole number"),
)
kind(
    "vary that leaves no common work",
    (["+vary.trainer.lag=[0,1]"], "run it once for each value: python run.py -m trainer.lag=0,1"),
    (["+vary.engine.processes=[1,2]"], "and not in engine.processes; run it once for each value"),
    (["+vary.cluster=[none,ray]"], "run it once for each value: python run.py -m cluster=none,ray"),
)
kind("model code to be run", (["+trainer.trust_remote_code=true"], "trainer.trust_remote_code=true"))


def with_head(policy: Path, folder: Path) -> list[str]:
    """A command line with an arm that drafts with the head in `folder`."""
    lengths = ["trainer.max_completion_length=48", "engine.max_model_len=160"]
    return ["arms=[none,eagle3_frozen]", f"policy.path={policy}", f"head.path={folder}", *lengths]


@kind(
    "draft head that is missing",
    (["task=train", "arm=eagle3_online", "head.path=/nonexistent"], "head /nonexistent: config.json is missing"),
)
def no_head(tmp: Path, policy: Path) -> Made:
    return with_head(policy, tmp / "nowhere"), "nowhere: config.json is missing or damaged"


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


@kind("config file with a syntax error")
def broken_yaml(tmp: Path, policy: Path) -> Made:
    return own_config(tmp, b"name: fixed\ntokens: [1, 2\n"), "mine.yaml"


@kind("config file that is not UTF-8")
def latin_yaml(tmp: Path, policy: Path) -> Made:
    return own_config(tmp, "name: größe\n".encode("latin-1")), "chooses a config file that is not UTF-8"


@kind("out= that cannot be written")
def out_is_a_file(tmp: Path, policy: Path) -> Made:
    (tmp / "file").touch()
    return [f"out={tmp / 'file'}"], "cannot be created (Not a directory): set out=OTHER_DIR"


@kind("out= that cannot be written")
def out_in_proc(tmp: Path, policy: Path) -> Made:
    return ["out=/proc/nowhere"], "/proc/nowhere"


@kind("resume= of what is no run")
def no_folder(tmp: Path, policy: Path) -> Made:
    return [f"resume={tmp / 'nowhere'}"], "nowhere: no such folder"


@kind("resume= of what is no run")
def empty_folder(tmp: Path, policy: Path) -> Made:
    return [f"resume={tmp}"], "no run of task=train or task=compare"


@kind("resume= of what is no run")
def other_overrides(tmp: Path, policy: Path) -> Made:
    (tmp / "overrides.json").write_text("7")
    return [f"resume={tmp}"], "overrides.json"


@kind("resume= of what is no run")
def not_resumable(tmp: Path, policy: Path) -> Made:
    resume.remember(tmp, ["task=rollout"])
    return [f"resume={tmp}"], "task=rollout cannot be resumed"


# ---- policies ----


def copied(tmp: Path, policy: Path, without: str = "") -> tuple[list[str], Path]:
    """A command line that uses a copy of the policy, and the copy, to be damaged."""
    ignore = shutil.ignore_patterns(without) if without else None
    shutil.copytree(policy, tmp / "policy", ignore=ignore)
    return [f"policy.path={tmp / 'policy'}", "engine.max_model_len=320", "trainer.max_completion_length=64"], (
        tmp / "policy"
    )


def altered(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@kind("policy that is missing")
def no_policy(tmp: Path, policy: Path) -> Made:
    return [f"policy.path={tmp / 'nowhere'}"], "nowhere does not exist"


SHORT = ("engine.max_model_len=256", "trainer.max_completion_length=64")  # what the tests' policy can hold


@kind(
    "draft model that cannot be",
    (["task=rollout", "arm=draft_model", "arm.speculative.num_speculative_tokens=0"], "=0"),
)
def no_draft_model(tmp: Path, policy: Path) -> Made:
    nowhere = f"arm.speculative.model={tmp / 'nowhere'}"
    return ["task=rollout", "arm=draft_model", nowhere], "nowhere does not exist, or has no config.json"


@kind("draft model that cannot be")
def none_made(tmp: Path, policy: Path) -> Made:
    arguments = ["task=rollout", "arm=draft_model", f"policy.path={policy}", *SHORT]
    return arguments, "a draft model is made for policy=small"


@kind("MTP layer that cannot draft so")
def no_layer(tmp: Path, policy: Path) -> Made:
    return [*MTP, f"policy.path={policy}", *SHORT], "has no MTP layer: take another method"


@kind("draft model of another vocabulary")
def other_draft_model(tmp: Path, policy: Path) -> Made:
    _, folder = copied(tmp, policy)
    altered(folder / "config.json", vocab_size=7)
    draft_model = f"arm.speculative.model={folder}"
    arguments = ["task=rollout", "arm=draft_model", f"policy.path={policy}", draft_model, *SHORT]
    return arguments, "knows 7 tokens, the policy"


@kind("policy with NaN in its weights")
def lost_policy(tmp: Path, policy: Path) -> Made:
    arguments, folder = copied(tmp, policy)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return arguments, "model.norm.weight in model.safetensors holds NaN or infinity"


@kind("policy that is a symlink loop")
def looping_policy(tmp: Path, policy: Path) -> Made:
    (tmp / "a").symlink_to(tmp / "b")
    (tmp / "b").symlink_to(tmp / "a")
    return [f"policy.path={tmp / 'a'}"], "does not exist, or is no folder"


@kind("policy without a tokenizer")
def no_tokenizer(tmp: Path, policy: Path) -> Made:
    return copied(tmp, policy, "tokenizer*")[0], "has no tokenizer (tokenizer_config.json)"


@kind("policy with a damaged tokenizer")
def torn_tokenizer(tmp: Path, policy: Path) -> Made:
    arguments, folder = copied(tmp, policy)
    (folder / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes()[:200])
    return arguments, "transformers cannot load it"


@kind("policy without weights")
def no_weights(tmp: Path, policy: Path) -> Made:
    return copied(tmp, policy, "*.safetensors")[0], "no weights: save them as model.safetensors"


@kind("policy with truncated weights")
def torn_weights(tmp: Path, policy: Path) -> Made:
    arguments, folder = copied(tmp, policy)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    return arguments, "SafetensorError"


@kind("pickle where safetensors is expected")
def pickled_weights(tmp: Path, policy: Path) -> Made:
    arguments, folder = copied(tmp, policy, "*.safetensors")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Opened()))
    return arguments, "only pytorch_model.bin, a pickle, which is never opened"


@kind("pickle where safetensors is expected")
def pickle_in_disguise(tmp: Path, policy: Path) -> Made:
    arguments, folder = copied(tmp, policy)
    (folder / "model.safetensors").write_bytes(pickle.dumps(Opened()))
    return arguments, "SafetensorError"


@kind("config.json that is not JSON")
def torn_config(tmp: Path, policy: Path) -> Made:
    arguments, folder = copied(tmp, policy)
    (folder / "config.json").write_text("{")
    return arguments, "not a valid JSON file"


@kind("weights of another architecture")
def other_architecture(tmp: Path, policy: Path) -> Made:
    arguments, folder = copied(tmp, policy)
    altered(folder / "config.json", model_type="llama", architectures=["LlamaForCausalLM"])
    return (
        arguments,
        "weights and config.json belong to different models: 4 unexpected, such as model.layers.0.self_attn",
    )


@kind("weights of another architecture")
def other_size(tmp: Path, policy: Path) -> Made:
    arguments, folder = copied(tmp, policy)
    altered(folder / "config.json", hidden_size=128)
    return arguments, "mismatched, such as model.embed_tokens.weight"


@kind("weights of another vocabulary")
def other_vocabulary(tmp: Path, policy: Path) -> Made:
    arguments, folder = copied(tmp, policy)
    altered(folder / "config.json", vocab_size=99)
    return arguments, "1 mismatched, such as model.embed_tokens.weight"


@kind("architecture nobody knows, with code of its own")
def code_of_its_own(tmp: Path, policy: Path) -> Made:
    arguments, folder = copied(tmp, policy)
    (folder / "own.py").write_text("import os\nos._exit(77)\n")
    altered(folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.A", "AutoModelForCausalLM": "own.B"})
    return arguments, "contains custom code"


@kind("context longer than the policy's")
def long_context(tmp: Path, policy: Path) -> Made:
    return [*copied(tmp, policy)[0], "engine.max_model_len=9999"], "lower engine.max_model_len=9999"
