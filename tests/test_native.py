"""C cores are compiled once per source, flags and CPU, or come with a wheel; a failure gives one clear line."""

import ctypes
import os
import platform
from pathlib import Path

import pytest

from das.general import native


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source that includes a header one folder up, where nothing has been built."""
    source = tmp_path / "package" / "native.c"
    source.parent.mkdir()
    source.write_text('#include "../answer.h"\n')
    (tmp_path / "answer.h").write_text("int das_new(void) { return 7; }\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return source


def test_builds_again_only_if_something_changed(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = native.build(elsewhere)
    assert first.parent == elsewhere.parent / "_build"
    assert ctypes.CDLL(str(first)).das_new
    stamp = first.stat().st_mtime_ns
    assert native.build(elsewhere) == first
    assert first.stat().st_mtime_ns == stamp
    monkeypatch.setattr(native, "cpu_model", lambda: "another")
    other_cpu = native.build(elsewhere)
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-DOTHER"))
    other_flags = native.build(elsewhere)
    elsewhere.write_text(elsewhere.read_text() + "\n")
    other_source = native.build(elsewhere)
    (elsewhere.parents[1] / "answer.h").write_text("int das_new(void) { return 8; }\n")
    assert len({first, other_cpu, other_flags, other_source, native.build(elsewhere)}) == 5
    assert [p.name for p in first.parent.iterdir() if p.suffix != ".so"] == []


def test_falls_back_to_the_user_cache(elsewhere: Path, tmp_path: Path) -> None:
    (elsewhere.parent / "_build").write_text("a file where the folder should be")
    assert native.build(elsewhere).parent == tmp_path / "cache" / "das"


def test_missing_gcc_says_what_to_install(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(native.NativeBuildError, match="apt-get install gcc") as error:
        native.build(elsewhere)
    assert "\n" not in str(error.value)


def test_compile_error_is_one_line(elsewhere: Path) -> None:
    elsewhere.write_text("int broken(void) { return missing; }\n")
    with pytest.raises(native.NativeBuildError, match=r"could not compile native.c: .*missing") as error:
        native.build(elsewhere)
    assert "\n" not in str(error.value)


def test_a_wheels_core_is_taken_if_the_processor_has_its_instructions(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = (("new", frozenset({"vector", "wide"})), ("old", frozenset()))
    monkeypatch.setitem(native.LEVELS, platform.machine(), levels)
    monkeypatch.setattr(native, "cpu_model", lambda: "flags : vector")
    assert native.prebuilt(elsewhere) is None  # a checkout
    for level, _ in levels:
        library = native.in_wheel(elsewhere, level)
        library.parent.mkdir(exist_ok=True)
        native.compile_core(elsewhere, library, "native")
    assert native.prebuilt(elsewhere) == native.in_wheel(elsewhere, "old")
    monkeypatch.setattr(native, "cpu_model", lambda: "flags : vector wide")
    assert native.prebuilt(elsewhere) == native.in_wheel(elsewhere, "new")
    monkeypatch.setenv("PATH", os.devnull)
    assert native.load_native(elsewhere).das_new
    assert not (elsewhere.parent / "_build").exists()
