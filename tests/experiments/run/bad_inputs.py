"""Bad input by kinds: that of bad_inputs.txt, and bad policies. Bad files and runs are in bad_records.py."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from damages import Damage, halved, removed, written

from experiments.arm import resume

Made = tuple[list[str], str]  # a command line, and words that the error line must contain
Make = Callable[[Path, Path], Made]  # makes a case from an empty folder and a policy
CASES: dict[str, list[Make]] = {}  # kind of input -> its cases
WEIGHTS = "model.safetensors"
SHORT = ("engine.max_model_len=320", "trainer.max_completion_length=64")  # what the tests' policy can hold


class Opened:
    """A pickle that ends the process with exit code 77 when it is opened."""

    def __reduce__(self) -> Any:
        return (os._exit, (77,))


def kind(name: str) -> Callable[[Make], Make]:
    """Adds a case to a kind."""

    def add(make: Make) -> Make:
        CASES.setdefault(name, []).append(make)
        return make

    return add


def of_line(line: str) -> Make:
    """A case of bad_inputs.txt."""
    typed, words = line.split(" => ", 1)
    return lambda tmp, policy: (typed.replace("{tmp}", str(tmp)).replace("{policy}", str(policy)).split(" "), words)


TEXT = (Path(__file__).parent / "bad_inputs.txt").read_text()
label = ""
for each in TEXT.splitlines()[3:]:
    if each.startswith("# "):
        label = each.removeprefix("# ")
    elif each:
        kind(label)(of_line(each))


# ---- files ----


@kind("draft head of another policy")
def head_of_another_shape(tmp: Path, policy: Path) -> Made:
    vocabulary = json.loads((policy / "config.json").read_text())["vocab_size"]
    config = {"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 32, "vocab_size": vocabulary}
    (tmp / "config.json").write_text(json.dumps(config))
    (tmp / "model.safetensors").touch()
    arguments = ["arms=[none,eagle3_frozen]", f"policy.path={policy}", f"head.path={tmp}", *SHORT]
    return arguments, "has hidden size 32, the policy 64: it belongs to another policy"


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


@kind("resume= of what is no run")
def other_overrides(tmp: Path, policy: Path) -> Made:
    (tmp / "overrides.json").write_text("7")
    return [f"resume={tmp}"], "overrides.json"


@kind("resume= of what is no run")
def not_resumable(tmp: Path, policy: Path) -> Made:
    resume.remember(tmp, ["task=rollout"])
    return [f"resume={tmp}"], "task=rollout cannot be resumed"


@kind("run folder of somebody else")
def others_code(tmp: Path, policy: Path) -> Made:
    (tmp / "evil.py").write_text("import os\nos._exit(77)\n")
    resume.remember(tmp, ["task=train", "reward=own", "reward.function=evil:f"])
    return [f"resume={tmp}"], "it asks to run reward.function=evil:f; if you trust it, repeat this setting"


@kind("run folder of somebody else")
def link(tmp: Path, policy: Path) -> Made:
    resume.remember(tmp / "run", ["task=train"])
    (tmp / "run" / "metrics.jsonl").symlink_to(tmp / "precious.txt")
    return [f"resume={tmp / 'run'}"], "metrics.jsonl is a link; put a file or folder in its place"


# ---- policies ----


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


def policy_case(label: str, words: str, *damages: Damage) -> None:
    """Add a case: a policy that is damaged so."""

    @kind(label)
    def make(tmp: Path, policy: Path) -> Made:
        return copied(policy, tmp / "policy", *damages), words


def altered(**values: Any) -> Damage:
    """The damage of other values in config.json."""

    def damage(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return damage


PICKLED, OTHER = "pickle where safetensors is expected", "weights of another architecture"
PICKLE = pickle.dumps(Opened())
ONLY_PICKLE = (removed(WEIGHTS), written("pytorch_model.bin", PICKLE))
LLAMA = altered(model_type="llama", architectures=["LlamaForCausalLM"])
OWN_CODE = (
    written("own.py", b"import os\nos._exit(77)\n"),
    altered(model_type="own", auto_map={"AutoConfig": "own.A", "AutoModelForCausalLM": "own.B"}),
)
policy_case("policy without a tokenizer", "has no tokenizer", removed("tokenizer*"))
policy_case("policy with a damaged tokenizer", "transformers cannot load it", halved("tokenizer.json"))
policy_case("policy without weights", "named model.safetensors", removed(WEIGHTS))
policy_case("policy with truncated weights", "SafetensorError", halved(WEIGHTS))
policy_case(PICKLED, "named model.safetensors", *ONLY_PICKLE)
policy_case(PICKLED, "SafetensorError", written(WEIGHTS, PICKLE))
policy_case("config.json that is not JSON", "not a valid JSON file", written("config.json", b"{"))
policy_case(OTHER, "different models: 4 unexpected, such as model.layers.0.self_attn", LLAMA)
policy_case(OTHER, "mismatched, such as model.embed_tokens.weight", altered(hidden_size=128))
policy_case("weights of another vocabulary", "1 mismatched, such as model.embed_tokens", altered(vocab_size=99))
policy_case("architecture nobody knows, with code of its own", "contains custom code", *OWN_CODE)


# ---- draft models ----


@kind("draft model of another vocabulary")
def other_draft_model(tmp: Path, policy: Path) -> Made:
    copied(policy, tmp / "other", altered(vocab_size=7))
    arguments = ["task=rollout", "arm=draft_model", f"policy.path={policy}", f"arm.speculative.model={tmp / 'other'}"]
    return [*arguments, *SHORT], "knows 7 tokens, the policy"
