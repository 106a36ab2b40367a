"""Python imports this file when it starts, in every process under `python -m das run`: `das.speculate()` is called as
soon as TRL's trainers are imported. Nothing is imported before, so other programs start as fast as ever.

The processes may run any Python from 3.6 on: annotations that those of today alone understand are texts.
"""

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

OPTIONS = "DAS_RUN_OPTIONS"  # environment variable: the arguments of das.speculate(), as JSON
TRAINERS = "trl.trainer.base_trainer"


class _Speculating(importlib.machinery.SourceFileLoader):
    """Loads the module of TRL's base trainer, then turns das on."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        import json

        import das

        das.speculate(**json.loads(os.environ[OPTIONS]))


class _Finder:
    """Finds the module of TRL's base trainer. Before TRL is imported, its warnings of vLLM's version are silenced."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None", target: "ModuleType | None" = None
    ) -> "importlib.machinery.ModuleSpec | None":
        if name == "trl":
            from das.engine.versions import silence_known

            silence_known()
        if name != TRAINERS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Speculating(name, spec.origin)
        return spec


def _import_next() -> None:
    """Import the sitecustomize that Python would have found without `das run`, if there is one."""
    own = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path) != own]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module  # for those who import it later
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":  # das.commands.run imports this file, too, for the name of the variable
    if OPTIONS in os.environ:
        sys.meta_path.insert(0, _Finder())
    _import_next()
