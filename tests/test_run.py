"""`python -m das run`: a script with das, as it is. Nothing but the rollouts of trainers that das knows may change."""

import argparse
import ast
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from scripts import Ended, run_script, scripts
from test_guides import PROGRAMS

import das.commands.run
from das import __main__
from das.commands.run import VERL, VERL_ENGINE, command_with_das, options
from das.commands.start.sitecustomize import OPTIONS
from das.engine.build import engine_arguments
from das.engine.install import INVARIANT
from das.engine.rollouts.totals import FOLDER

ROOT = Path(__file__).resolve().parents[1]
FIXED = ("--set", "budget.name=fixed", "--set", "budget.tokens=8")  # reads no clock


def das_run(*words: str | Path, path: str = "") -> Ended:
    """`python -m das run`, in a fork of a process that has imported vLLM and TRL."""
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, [path, str(ROOT)]))}
    (ended,) = scripts(["-m", "das", "run", *map(str, words)], [environment])
    return ended


def test_options_are_those_of_speculate() -> None:
    settings = ["drafter.window=4", "drafter.remember=tokens", "budget.tokens=8", "budget.name=fixed", "lag=1"]
    assert options("das", settings) == {
        "method": "das",
        "drafter": {"window": 4, "remember": "tokens"},
        "budget": {"name": "fixed", "tokens": 8},
        "lag": 1,
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "say what to run"),
        (("--", "no_such_program"), "no_such_program: no such program; give the command after --"),
        (("--method", "stock", "--", "true"), "run the command without das"),
        (
            ("--set", "window=4", "--", "true"),
            "--set window=4: give lag=1, exact=bits, or GROUP.NAME=VALUE with a group of drafter",
        ),
        (("--set", "drafter.unit=week", "--", "true"), "drafter unit 'week': choose epoch or step"),
        (("--set", "lag=long", "--", "true"), "lag=long: give a whole number of training steps"),
        (("--set", "cluster.engines=0", "--", "true"), "cluster.engines=0"),
        (("--set", "lag=1", "--", "python", "-m", VERL), "verl builds its engines itself: leave out --set lag"),
    ],
)
def test_refused_in_one_line_before_anything_starts(
    words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["das", "run", *words])
    assert __main__.main() == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("error: ")
    assert said.count("\n") == 1


def test_a_file_that_no_system_can_start_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell would run such a script."""
    script, temporary = tmp_path / "train.sh", tmp_path / "temporary"
    script.write_text("echo begun\n")
    script.chmod(0o755)
    temporary.mkdir()
    monkeypatch.setattr(das.commands.run.tempfile, "tempdir", str(temporary))
    assert das.commands.run.run(argparse.Namespace(method="das", set=[], words=["--", str(script)])) == 2
    assert capsys.readouterr().err == f"error: {script} cannot be started: Exec format error\n"
    assert not list(temporary.iterdir())


@pytest.mark.slow
def test_other_programs_keep_their_start_and_their_exit_code(tmp_path: Path) -> None:
    """They import nothing of das, and the sitecustomize that they had before."""
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.of_others = True")
    script = "import sys; print(of_others, {name.split('.')[0] for name in sys.modules} & {'das', 'torch'}); exit(3)"
    run = das_run("--", sys.executable, "-c", script, path=str(tmp_path))
    assert (run.code, run.out) == (3, "True set()\n")
    assert run.errors == (
        "das: no engine rolled out with das until the command ended; it needs a trainer of TRL with use_vllm=True "
        f"(docs/trl.md), or python -m {VERL} as the command itself; python -I, -E and -S hide das\n"
    )


def test_a_command_runs_though_no_folder_for_its_sum_can_be_made(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(prefix: str) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(das.commands.run.tempfile, "mkdtemp", full)
    monkeypatch.setattr(das.commands.run.signal, "signal", lambda *args: None)
    arguments = argparse.Namespace(method="das", set=[], words=["--", "bash", "-c", f"echo ${{{FOLDER}-none}}; exit 3"])
    assert das.commands.run.run(arguments) == 3
    out, err = capfd.readouterr()
    assert out == "none\n"
    assert err.startswith(
        "das: the folder for the sum at the end (TMPDIR) failed, and the run goes on without: OSError"
    )


PYTHONS = sorted({sys.executable, *map(str, Path.home().glob(".pyenv/versions/3.*/bin/python"))})


@pytest.mark.parametrize("python", PYTHONS)
def test_every_python_starts_with_the_sitecustomize_that_it_had(python: str, tmp_path: Path) -> None:
    own = tmp_path / "sitecustomize.py"
    own.write_text("import builtins; builtins.of_others = True")
    script = "import sitecustomize; print(of_others, sitecustomize.__file__)"
    path = os.pathsep.join([str(ROOT / "das" / "commands" / "start"), str(tmp_path)])
    environment = {**os.environ, OPTIONS: "{}", "PYTHONPATH": path}
    run = subprocess.run([python, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == (f"True {own}\n", "")


def test_what_every_python_imports_is_read_by_python_3_6() -> None:
    source = (ROOT / "das" / "commands" / "start" / "sitecustomize.py").read_text()
    for node in ast.walk(ast.parse(source, feature_version=(3, 6))):
        for annotation in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            assert not isinstance(annotation, ast.BinOp | ast.Subscript), ast.unparse(annotation)


def test_a_signal_reaches_the_command() -> None:
    script = "import os, signal; os.kill(os.getppid(), signal.SIGTERM); signal.pause()"
    assert das_run("--", sys.executable, "-c", script).code == 128 + 15


@pytest.mark.parametrize("method", ["das", "none"])
def test_verl_gets_the_engine_arguments_as_overrides(method: str) -> None:
    command = ["python", "-m", VERL, "trainer.nnodes=1"]
    found = command_with_das(command, options(method, ["drafter.window=4", "budget.name=fixed"]))
    assert found[:4] == command
    parsed = {each.key_or_group: each.value() for each in OverridesParser.create().parse_overrides(found[4:])}
    wanted = engine_arguments(method, {"window": 4}, {"name": "fixed"})
    mode, in_background = wanted.pop("logprobs_mode"), wanted.pop("async_scheduling")
    wanted["no_async_scheduling"] = not in_background
    of_engine = {f"{VERL_ENGINE}.{name}": value for name, value in wanted.items()}
    assert parsed == {"actor_rollout_ref.rollout.logprobs_mode": mode, **of_engine}


def test_bits_of_verl_on_a_gpu_need_the_variables_of_an_engine_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(das.commands.run, "installed", lambda *names: "0.32.0")
    assert das.commands.run.environment("distribution") == {"VLLM_NO_USAGE_STATS": "1"}
    ours = das.commands.run.environment("bits")
    assert ours.items() >= INVARIANT.items()
    monkeypatch.setattr(das.commands.run, "installed", lambda *names: None)
    assert das.commands.run.environment("bits") == {"VLLM_NO_USAGE_STATS": "1"}


@pytest.mark.slow
def test_weights_are_those_of_speculate_in_the_script(repetitive_policy: str, tmp_path: Path) -> None:
    """README's program calls das.speculate(); without two lines it knows nothing of das."""
    visibly = "max_steps=4, temperature=0.3, learning_rate=0.01, disable_tqdm=True"  # so the weights change
    lines = PROGRAMS[0].values[0].replace("max_steps=8", visibly).splitlines()
    plain = [line for line in lines if not line.startswith(("import das", "das.speculate("))]
    assert len(plain) == len(lines) - 2
    folders = [tmp_path / name for name in ("told", "run_by")]
    for folder, program in zip(folders, (lines, plain), strict=True):
        folder.with_suffix(".py").write_text("\n".join(program).replace("outputs/trl", str(folder)))
    run_script("tests/fixed_budget.py", tmp_path / "told.py", repetitive_policy)
    run = das_run(*FIXED, "--", sys.executable, tmp_path / "run_by.py", repetitive_policy)
    assert run.code == 0, run.errors[-3000:]
    told, weights = (next(folder.glob("checkpoint-*/model.safetensors")) for folder in folders)
    assert weights.read_bytes() == told.read_bytes()
    said, total = run.errors.splitlines()  # nobody says anything of which the user has no use
    assert said == "das: exact=bits: drafts change no token"
    assert "drafted tokens were accepted" in total
    assert total.endswith("in 4 rollouts")
    assert not total.startswith("das: 0 of")
