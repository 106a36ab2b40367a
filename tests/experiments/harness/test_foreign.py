"""Run folders that somebody else made: what they name is not run, and their links lead nowhere."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from composed import composed, composed_run
from omegaconf import OmegaConf

from experiments.harness import foreign, resume
from experiments.harness.replays.recorded_arms import arm_config_of, can_be_replayed
from experiments.run.errors import UserError, stop
from experiments.run.plain import plain
from experiments.run.progress import Progress

NAMING = [
    "reward.function=outputs.shared.evil:f",
    "drafter.name=outputs.shared.evil:C",
    "data.path=${oc.env:MYSECRET}",
    "hydra.searchpath=[file:///tmp/theirs]",
    "+engine.extra.worker_cls=evil.Worker",
    "+engine.extra.trust_remote_code=true",
    "cluster.address=evil.example:6379",
    "wandb=online",
    "out=/home/sender/outputs",
    "+vary.budget.name=[evil:B]",
    "++policy.path=/home/sender/policy",
]


def record(folder: Path, content: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "overrides.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder of a user of the tests' own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.mark.parametrize("setting", NAMING)
@pytest.mark.parametrize("forged", ["", "0" * 64, "\ud800"])
def test_settings_of_somebody_else_must_be_given_again(setting: str, forged: str, tmp_path: Path) -> None:
    settings = ["task=train", setting]
    folder = record(tmp_path / "run", {"overrides": settings, "signature": forged})
    foreign.signature([])  # this user has a key
    with pytest.raises(UserError, match="no signature of yours") as refused:
        resume.require_own(folder, [f"resume={folder}"])
    assert setting in str(refused.value), "it is shown"
    with pytest.raises(UserError, match="no signature of yours"):
        resume.require_own(folder, ["task=train"])
    resume.require_own(folder, ["task=train", setting.replace("evil", "mine")])


def test_a_run_of_ones_own_is_resumed_by_its_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    resume.remember(folder, NAMING)
    resume.require_own(folder, [f"resume={folder}"])
    moved = shutil.move(folder, tmp_path / "moved")
    resume.require_own(Path(moved), [])
    written = json.loads((tmp_path / "moved" / "overrides.json").read_text())
    written["overrides"][0] = "reward.function=outputs.shared.evil:g"
    record(tmp_path / "moved", written)
    with pytest.raises(UserError, match="evil:g"):
        resume.require_own(tmp_path / "moved", [])
    resume.remember(folder, NAMING)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    for _ in range(2):  # without a key, and with another
        with pytest.raises(UserError, match="no signature of yours"):
            resume.require_own(folder, [])
        foreign.signature([])


def test_the_key_is_the_users_alone_and_a_home_that_cannot_be_written_stops_no_run(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert foreign.signature(["a"]) == foreign.signature(["a"]) != foreign.signature(["b"])
    assert (home / "das" / "key").stat().st_mode & 0o777 == 0o600
    assert os.listdir(home / "das") == ["key"]
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    resume.remember(tmp_path / "run", ["seed=3"])
    with pytest.raises(UserError, match=r"seed=3$"):
        resume.require_own(tmp_path / "run", [])
    resume.require_own(tmp_path / "run", ["seed=3"])


# ---- modules ----


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder, on sys.path as run.py's is, with a run of somebody else and a module of the user's."""
    folder = tmp_path / "project"
    bomb = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n"
    for module in ("outputs/shared/evil.py", "outputs/shared/inner/__init__.py", "elsewhere/mine.py", "run/near.py"):
        (folder / module).parent.mkdir(parents=True, exist_ok=True)
        (folder / module).write_text(bomb)
    (folder / "outputs" / "shared" / "linked.py").symlink_to(folder / "elsewhere" / "mine.py")
    (folder / "elsewhere" / "through.py").symlink_to(folder / "outputs" / "shared" / "evil.py")
    (folder / "elsewhere" / "across").symlink_to(folder / "outputs" / "shared")
    monkeypatch.setattr(foreign, "CONFIGS", folder / "configs")
    for path in (folder / "elsewhere", folder / "run", folder):
        monkeypatch.syspath_prepend(path)
    return folder


@pytest.mark.parametrize(
    "setting",
    [
        "reward.function=outputs.shared.evil:f",
        "reward.function=outputs.shared.inner:f",
        "reward.function=outputs.shared.inner.deeper:f",
        "reward.function=outputs.shared.linked:f",
        "reward.function=through:f",
        "reward.function=across.evil:f",
        "reward.function=near:f",
        "++drafter.name=outputs.shared.evil:C",
        "++budget.name=near:B",
        "+vary.drafter.name=[history,'outputs.shared.evil:C']",
        "+arm.budget.name=across.evil:B",
    ],
)
def test_no_module_of_a_run_folder_is_run(setting: str, project: Path) -> None:
    config = composed_run(*(["reward=own"] if "reward" in setting else []), setting)
    with pytest.raises(UserError, match=r"is in a folder of runs, from which no code is run"):
        foreign.refuse_modules(config, project / "run")
    assert not list(project.rglob("ran"))


@pytest.mark.parametrize("name", ["mine:f", "json.decoder:f", "nowhere:f", "nowhere.deeper:f", "__main__:f"])
def test_other_modules_are_the_users(name: str, project: Path) -> None:
    foreign.refuse_modules(composed_run("reward=own", f"reward.function={name}"), project / "run")
    foreign.refuse_modules(composed_run("reward=own", f"reward.function={name}", f"out={project}"), project / "other")


def test_a_recorded_config_reads_no_environment_and_loads_no_class(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a replay reads from a run's folder."""
    monkeypatch.setenv("MYSECRET", "s3cret")
    config = OmegaConf.create(plain(composed()))
    folder = project / "run"
    OmegaConf.save(config, folder / "config.yaml")
    assert can_be_replayed(arm_config_of(folder))
    for group, name in (("drafter", "outputs.shared.evil:C"), ("budget", "mine:B")):
        changed = OmegaConf.merge(config, {group: {"name": name}})
        OmegaConf.save(changed, folder / "config.yaml")
        assert not can_be_replayed(arm_config_of(folder))
    for text in ("${oc.env:MYSECRET}", "a ${ oc.env : MYSECRET }", "${${policy.name}:MYSECRET}"):
        OmegaConf.save(OmegaConf.merge(config, {"data": {"path": text}}), folder / "config.yaml")
        with pytest.raises(UserError, match=r"config.yaml cannot be read: ValueError: data.path asks for more than"):
            arm_config_of(folder)
    assert not list(project.rglob("ran"))


# ---- lines ----


def test_control_characters_do_not_reach_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        stop("data.path=\x1b[2J\x1b[31mfake\x07 \u202ex\x9b\ud800: größer", 2)
    Progress(0, terminal=sys.stdout).note("first\nmeta.json says \x1b]0;title\x07 └")
    printed = capfd.readouterr()
    assert printed.err == "error: data.path=\\x1b[2J\\x1b[31mfake\\x07 \\u202ex\\x9b\\ud800: größer\n"
    assert printed.out == "first\nmeta.json says \\x1b]0;title\\x07 └\n"


# ---- links ----


def to_file(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "precious.txt")


def to_folder(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def to_nothing(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "new")


@pytest.mark.parametrize(
    ("name", "link"),
    [
        ("metrics.jsonl", to_file),
        ("overrides.json", to_file),
        ("engines.jsonl", to_nothing),
        ("log.txt", to_file),
        ("result.json.123.tmp", to_file),
        ("rollouts", to_folder),
        ("checkpoints", to_folder),
        ("checkpoints/step_00008", to_folder),
        ("trainer", to_folder),
        ("arms", to_folder),
        ("arms/das", to_folder),
        ("arms/das/history.npz", to_file),
        ("wandb", to_folder),
        ("launch.txt", to_file),
    ],
)
def test_links_out_of_a_run_folder_are_refused(name: str, link: Callable[[Path, Path], None], tmp_path: Path) -> None:
    outside, path = tmp_path / "outside", tmp_path / "run" / name
    outside.mkdir()
    (outside / "precious.txt").write_text("precious")
    path.parent.mkdir(parents=True)
    link(path, outside)
    with pytest.raises(UserError, match="is a link that leads out of the run folder"):
        foreign.refuse_links(tmp_path / "run")


def test_links_within_a_run_folder_and_those_of_wandb_are_fine(tmp_path: Path) -> None:
    run = tmp_path / "real" / "run"
    logs = run / "arms" / "das" / "wandb" / "offline-run-1" / "logs"
    logs.mkdir(parents=True)
    (logs / "debug-core.log").symlink_to("/root/.cache/wandb/logs/core-debug.log")
    (run / "newest").symlink_to("arms/das")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    foreign.refuse_links(tmp_path / "link" / "run")
    os.mkfifo(run / "overrides.json")
    with pytest.raises(UserError, match=r"overrides.json is neither a file nor a folder"):
        foreign.refuse_links(run)
    (run / "overrides.json").unlink()
    (run / "circle").symlink_to("circle")
    with pytest.raises(UserError, match="circle is a link"):
        foreign.refuse_links(run)


def test_the_lock_empties_no_file(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("precious")
    run = tmp_path / "run"
    run.mkdir()
    (run / "lock").symlink_to(tmp_path / "precious.txt")
    with pytest.raises(UserError, match=r"lock is a link: remove it"), resume.hold(run):
        pass
    (run / "lock").unlink()
    os.link(tmp_path / "precious.txt", run / "lock")
    with resume.hold(run):
        pass
    assert (tmp_path / "precious.txt").read_text() == "precious"
