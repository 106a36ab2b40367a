"""Bad input of many kinds (bad_inputs.py): each ends in one line that names the setting or the file, and exit code 2.

The functions that refuse get it as run.py calls them. What concerns a run's folder goes through run.py itself, in this
process. test_ends.py and test_bad_input.py start processes.
"""

import ast
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import run as entry
from das.engine.build import build_engine
from das.engine.install import install
from das.engine.settings import EngineSettings
from das.general.errors import EngineError
from experiments.run.errors import one_line_errors
from experiments.settings import compose
from experiments.settings.config import run_config
from experiments.settings.tasks import TASKS
from tests.experiments.run.bad_inputs import CASES

pytestmark = pytest.mark.slow

ADVICE = re.compile(r"weights_only|safe_globals|trust_remote_code=True")  # to open a pickle, or to run a model's code
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[[Callable[[], Any]], str]:
    """Runs a call that must stop with exit code 2 and one line on stderr; returns the line."""

    def run(start: Callable[[], Any], *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
        # On descriptor 2 itself, because tasks redirect that descriptor into logs.
        monkeypatch.setattr(sys, "stderr", open(2, "w", buffering=1, closefd=False))  # noqa: SIM115
        monkeypatch.setattr(sys, "stdout", sys.stdout)  # run.py puts another in its place
        capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            start()
        printed = capfd.readouterr().err
        assert stopped.value.code == 2, printed
        assert printed.startswith("error: "), printed
        assert printed.count("\n") == 1, printed
        assert printed.endswith("\n")
        assert len(printed) < 1000, printed
        assert not ADVICE.search(printed), printed
        assert printed.rstrip("\n").isprintable(), ascii(printed)
        return printed

    return run


def run_py() -> None:
    runpy.run_path(str(ROOT / "run.py"), run_name="__main__")


def refused() -> None:
    """What run.py does with a command line before a task works on it, and the task."""
    with one_line_errors():
        composed = compose.composed(sys.argv[1:])
        entry.require_writable(composed.folder)
        config = run_config(composed.config)
        TASKS[config.task.name].load()(config, composed, f"{config.out}/run")


VARIANTS = [(label, i) for label, cases in CASES.items() for i in range(len(cases))]


@pytest.mark.parametrize(("label", "i"), VARIANTS, ids=[f"{label}-{i}" for label, i in VARIANTS])
def test_one_line_and_exit_code_2(label: str, i: int, line: Any, tiny_policy: str, tmp_path: Path) -> None:
    arguments, named = CASES[label][i](tmp_path, Path(tiny_policy))
    out = [] if any(argument.startswith(("out=", "resume=")) for argument in arguments) else [f"out={tmp_path / 'out'}"]
    through_run_py = "resume=" in " ".join(arguments)
    printed = line(run_py if through_run_py else refused, *arguments, *out)
    assert named in printed, printed


def test_what_vllm_refuses_is_reported_in_one_line(tiny_policy: str) -> None:
    install()
    with pytest.raises(EngineError, match=r"vLLM refuses the engine: .*9999") as error:
        build_engine(EngineSettings(model=tiny_policy, max_model_len=9999))
    assert "\n" not in str(error.value)


def calls(tree: ast.AST) -> Iterator[tuple[str, dict[str, str], int]]:
    """(dotted name, keyword arguments, line) of every call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {str(k.arg): ast.unparse(k.value) for k in node.keywords}, node.lineno


AUTO = re.compile(r"Auto\w+\.from_pretrained")  # asks on the terminal whether to run a model's code, unless told not to


def test_nothing_unpickles_and_no_code_of_models_is_trusted() -> None:
    unsafe = []
    for folder in ("das", "experiments", "analysis", "rewards", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            tree = ast.parse(path.read_text())
            names = {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and [a.name for a in node.names] != ["UnpicklingError"]:
                    names.add(str(node.module))
            unsafe += [f"{path}: {name}" for name in names & {"pickle", "cPickle", "dill", "cloudpickle", "shelve"}]
            for name, given, number in calls(tree):
                if (
                    (name == "torch.load" and given.get("weights_only") != "True")
                    or (name in ("np.load", "numpy.load") and given.get("allow_pickle") != "False")
                    or given.get("trust_remote_code") == "True"
                    or (AUTO.fullmatch(name) and folder != "examples" and given.get("trust_remote_code") != "False")
                    or name in ("pd.read_pickle", "yaml.load", "yaml.unsafe_load", "joblib.load")
                ):
                    unsafe.append(f"{path}:{number}: {name}")
    assert unsafe == []
    assert "trust_remote_code: true" not in "".join(path.read_text() for path in (ROOT / "configs").rglob("*.yaml"))
