"""Build wheels that hold the C cores, so that nobody needs gcc where they are installed. Everything else about the
package is in pyproject.toml."""

import platform
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from das.general import native  # noqa: E402


class BuildWithCores(build_py):
    """Compiles the cores beside their sources. An editable install gets none: it compiles them on first use."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for source in sorted((ROOT / "das").glob("**/*.c")):
            for level, _ in native.LEVELS.get(platform.machine(), ()):
                library = native.in_wheel(Path(self.build_lib) / source.relative_to(ROOT), level)
                library.parent.mkdir(exist_ok=True)
                native.compile_core(source, library, level)


class WheelForAnyPython(bdist_wheel):
    """ctypes loads the cores, so they belong to a platform, and to no version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class WithMachineCode(Distribution):
    """Belongs to a platform, although it has no extension modules."""

    def has_ext_modules(self) -> bool:
        return True


setup(distclass=WithMachineCode, cmdclass={"build_py": BuildWithCores, "bdist_wheel": WheelForAnyPython})
