"""Every command of README and docs composes, every relative link resolves, and the site has every page."""

import importlib
import inspect
import json
import re
import shlex
from pathlib import Path

import pytest

import das
from experiments.compare.comparison import arm_changes, arm_configs, check_stock
from experiments.run.errors import CONFIGS
from experiments.settings.checked import schema_at
from experiments.settings.compose import composed
from experiments.settings.config import CHOICES, RunConfig, run_config
from experiments.settings.tasks import TASKS

ROOT = CONFIGS.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])
LOG = ROOT / "docs" / "log.md"  # dated: what it names may be gone
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"(?:python|torchrun|accelerate)\b[^\n`]* run\.py\b *([^\n`]*)")


def commands() -> list[str]:
    """What stands after run.py in commands of the pages. Commands with an ellipsis are no commands."""
    found = set()
    for page in PAGES:
        if page == LOG:
            continue
        text = page.read_text().replace("\\\n", " ")  # a command may go on in the next line
        blocks = FENCE.findall(text)
        spans = re.findall(r"`([^`]+)`", FENCE.sub("", text).replace("\n", " "))
        for code in [*blocks, *spans]:
            found |= {shlex.join(shlex.split(command, comments=True)) for command in PROGRAM.findall(code)}
    return sorted(command for command in found if "..." not in command and "-h" not in command.split("="))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_docs_name_commands() -> None:
    assert len(commands()) >= 20


@pytest.mark.parametrize("command", commands())
def test_command_composes(command: str) -> None:
    words = shlex.split(command)
    overrides = [word for word in words if not word.startswith("-")]
    if "-m" in words:  # a sweep: its first job
        overrides = [re.sub(r"^([^\[]*?),.*", r"\1", word) for word in overrides]
    overrides = [word for word in overrides if "=" in word]
    whole = composed(overrides)
    config = run_config(whole.config)
    assert config.task.name in TASKS
    if config.task.name == "compare" and {"arms", "vary"} & set(re.findall(r"\w+", command)):  # not the default arms
        check_stock(arm_configs(whole, arm_changes(config.arms, config.vary)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name}: {link}"


def test_code_and_configs_name_pages_and_anchors_that_exist() -> None:
    suffixes = {".py", ".yaml", ".yml", ".sh", ".md", ".toml"}
    ours = ("das", "experiments", "analysis", "rewards", "tests", "configs", "launch", "examples", "requirements")
    files = [path for folder in ours for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    named = {
        (page, anchor)
        for path in [*files, *(path for path in ROOT.iterdir() if path.is_file())]
        for page, anchor in re.findall(r"\bdocs/(\w+)\.md(?:#([\w-]+))?", path.read_text())
    }
    assert len(named) >= 10
    for page, anchor in sorted(named):
        target = ROOT / "docs" / f"{page}.md"
        assert target.exists(), page
        assert not anchor or anchor in anchors(target), f"{page}.md#{anchor}"


def test_settings_that_pages_name_exist() -> None:
    """Those with a group; behind a + an argument of TRL, or of a drafter or budget of the user's own."""
    keyed = re.compile(
        rf"(?<![\w./+-])(?:{'|'.join([*CHOICES, 'head', 'eval', 'checkpoint'])})(?:\.[a-z_]+)+(?=[=`\s\]])"
    )
    named = {(page, key) for page in PAGES if page != LOG for key in keyed.findall(page.read_text())}
    assert len(named) >= 100
    for page, key in sorted(named):
        group, *names = key.split(".")
        choice = CHOICES.get(group)
        kinds = [*choice.groups.values(), choice.other] if choice else [RunConfig]
        path = names[:1] if choice else [group, *names]
        known = key.endswith(".py") or key.startswith("policy.generation.")  # a file; NeMo-RL's
        assert known or any(schema_at(kind, path) is not None for kind in kinds if kind), f"{page.name}: {key}"


def test_files_that_pages_name_exist() -> None:
    """Of folders of the repository; a name in capitals, such as configs/task/NAME.yaml, stands for any."""
    tops = r"das|experiments|analysis|rewards|tests|configs|launch|examples|requirements"
    for page in PAGES:
        if page in (LOG, ROOT / "CHANGELOG.md"):
            continue
        for name in re.findall(rf"`((?:{tops})/[\w/.-]+\.\w+)`", page.read_text()):
            assert (ROOT / name).exists() or "NAME" in name, f"{page.name}: {name}"
        for name in re.findall(r"`(test_\w+\.py)`", page.read_text()):
            assert list((ROOT / "tests").rglob(name)), f"{page.name}: {name}"


def test_the_reference_names_the_public_names() -> None:
    """The site renders their docstrings (make docs)."""
    named = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE)
    items = [
        getattr(importlib.import_module(module), name) for module, _, name in (path.rpartition(".") for path in named)
    ]
    assert all(inspect.getdoc(item) for item in items)
    assert {getattr(das, name) for name in das.__all__} <= set(items)


def test_the_site_names_every_page() -> None:
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert set(re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text())) >= pages


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_readmes_table_shows_the_kept_measurements() -> None:
    data = ROOT / "docs" / "benchmarks" / "data"
    smollm2, small = (
        json.loads((data / f"{name}.json").read_text())["arms"] for name in ("real_policy", "default_experiment")
    )
    rows = [line.split(" | ") for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| ")]
    shown = {words[0].removeprefix("| "): words[1:] for words in rows if len(words) == 5}
    assert len(shown) == 6
    for words, of_smollm2, of_small in (
        ("nobody: `none`", "none", "none"),
        ("nobody: `stock`, plain TRL and vLLM", "stock", "stock"),
        ("`suffix`: vLLM's suffix decoding, verified by das", "suffix", "suffix"),
        ("das as in the paper: `drafter=paper`", None, "remember_tokens"),
        ("das, which also remembers likely tokens", "das", "remember_distributions"),
    ):
        for kept, arm, cells in ((smollm2, of_smollm2, shown[words][:2]), (small, of_small, shown[words][2:])):
            if arm is None:
                assert cells == ["–", "–"], words
                continue
            time, tokens = (float(cell.strip("*| ")) for cell in cells)
            assert time == pytest.approx(kept[arm]["of_none"]["mean"], abs=0.005), words
            assert tokens == pytest.approx(kept[arm]["tokens_per_pass"]["mean"], abs=0.005), words
