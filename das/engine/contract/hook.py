"""A name of vLLM that das relies on: where it is, what for, and with which parameters."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hook:
    """A name in a module of vLLM.

    name: dotted, such as Class.method or Class.attribute. parameters: the first ones of a function, behind which none
    may be required; None if the name is no function, or if its parameters do not matter. only_for: the one feature that
    needs it; a vLLM without it lacks that feature and is not refused. None: every engine of das needs it.
    """

    module: str
    name: str
    why: str
    parameters: tuple[str, ...] | None = None
    only_for: str | None = None

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def hooks(module: str, why: str, *names: str, only_for: str | None = None) -> tuple[Hook, ...]:
    """Hooks of one module. A name may bring its parameters: "Class.method(self, first)"."""
    found = []
    for name in names:
        dotted, _, rest = name.partition("(")
        parameters = tuple(part.strip() for part in rest.rstrip(")").split(",") if part.strip()) if rest else None
        found.append(Hook(f"vllm.{module}", dotted, why, parameters, only_for))
    return tuple(found)
