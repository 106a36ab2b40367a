"""What task=kill_test plants in the processes of a run finds its place. A fault without one never strikes."""

from importlib import import_module
from operator import attrgetter

from experiments.faults.sitecustomize import PLACES


def test_every_fault_has_a_place() -> None:
    for module, name in PLACES.values():
        assert callable(attrgetter(name)(import_module(module)))
