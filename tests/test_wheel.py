"""The wheel holds the library alone, with its C cores compiled, and the README's program runs with nothing else."""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from das.engine.versions import RANGES
from das.general.native import LEVELS
from tests.test_guides import PROGRAMS

ROOT = Path(__file__).resolve().parents[1]
FIXED = ROOT / "tests" / "fixed_budget.py"
COMPILER = re.compile(r"cc|gcc|g\+\+|c\+\+|clang|tcc")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of an environment in which the wheel is installed, beside vLLM, TRL and torch."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    site = next((environment / "lib").glob("python*/site-packages"))
    # All others are those of this environment; its editable das is not seen, for its .pth files are not followed.
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    return site


@pytest.fixture(scope="module")
def no_compiler(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables of a machine that has all programs of this one but compilers."""
    folder = tmp_path_factory.mktemp("bin")
    for place in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(place).glob("*"):
            if not COMPILER.search(program.name):
                (folder / program.name).unlink(missing_ok=True)
                (folder / program.name).symlink_to(program)
    ours = ("PYTHONPATH", "CC", "CXX")
    return {**{name: value for name, value in os.environ.items() if name not in ours}, "PATH": str(folder)}


@pytest.mark.slow
def test_wheel_holds_the_library_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"das"}
    sources = [path for path in (ROOT / "das").rglob("*") if path.suffix in (".py", ".c", ".h", ".json")]
    assert {str(path.relative_to(ROOT)) for path in sources} <= set(names)
    machine = sysconfig.get_platform().rpartition("-")[2]
    assert wheel.name.endswith(f"-py3-none-linux_{machine}.whl")
    cores = {Path(name).name for name in names if name.endswith(".so")}
    stems = [path.stem for path in sources if path.suffix == ".c"]
    assert cores == {f"{stem}-{level}.so" for stem in stems for level, _ in LEVELS[machine]}


@pytest.mark.slow
def test_the_readmes_program_runs(
    site: Path, no_compiler: dict[str, str], repetitive_policy: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAMS[0].values[0] + "\nprint(das.__file__)\n")
    python = site.parents[2] / "bin" / "python"
    command = [str(python), str(FIXED), "program.py", repetitive_policy]
    one_process = no_compiler | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # it starts sooner
    run = subprocess.run(command, cwd=tmp_path, env=one_process, capture_output=True, text=True, check=False)
    assert run.returncode == 0, (run.stdout + run.stderr)[-3000:]
    assert Path(run.stdout.splitlines()[-1]).is_relative_to(site)
    assert not list(site.glob("das/*/_build"))
    assert "das/drafted" in run.stdout
    assert re.search(r"das: \d+ of \d+ drafted tokens were accepted .* in \d rollouts", run.stderr)


def test_extras_name_the_versions_that_das_takes() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needs = {need.name: need for lines in extras.values() for need in map(Requirement, lines)}
    (major, oldest), (_, newest) = RANGES["trl"]
    assert needs["trl"].specifier == SpecifierSet(f">={major}.{oldest},<{major}.{newest + 1}")
    pinned = dict(re.findall(r"^(\w+)==(\S+)", (ROOT / "requirements" / "cpu.txt").read_text(), re.MULTILINE))
    for name, need in needs.items():
        assert need.specifier.contains(pinned[name]), name
