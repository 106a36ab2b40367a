"""das on vLLM's model runner (docs/vllm.md)."""

from vllm.platforms import current_platform

if current_platform.is_cpu():  # first, because it replaces names that the runner's modules import
    import vllm.v1.worker.cpu.shm  # noqa: F401
