"""Name the operation in which a request's bits first differ between two rollouts, by digests of each module's output.

Modules of a model run one by one only without CUDA graphs and without a compiler (enforce_eager), in the process of the
engine. The rows of a pass are those of vLLM's model runner.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

Responses = Sequence[dict[str, Any]]  # made by listed_response


def first_difference(one: Responses, other: Responses) -> dict[str, int] | None:
    """Return the index of the request, and the index of the token in its response, whose logits differ at the earliest
    position; None if all logits are equal."""
    found = [
        (position, request)
        for request, (a, b) in enumerate(zip(one, other, strict=True))
        for position, pair in enumerate(zip(a["logits"], b["logits"], strict=False))
        if pair[0] != pair[1]
    ]
    return None if not found else {"request": min(found)[1], "position": min(found)[0]}


class LayerDigests:
    """Keeps digests of the row of one request and position in the output of each module, in the order of the calls. The
    head, whose rows are those that are sampled, is left out.

    worker: of the engine, in this process. seed: the request's, which no other request may have. position: of the
    row's input token, prompt included. A row that is computed again, after a rejected draft, replaces the earlier one.
    """

    def __init__(self, worker: Any, seed: int, position: int):
        self._worker, self._seed, self._position = worker, seed, position
        self.digests: dict[str, str] = {}
        self.rows = 0  # of the pass with that row
        self._batch: Any = None  # vLLM's InputBatch of the running pass
        self._prepare = worker.model_runner.prepare_inputs
        worker.model_runner.prepare_inputs = self._prepared
        modules = [pair for pair in worker.model_runner.get_model().named_modules() if pair[0].startswith("model.")]
        self._hooks = [module.register_forward_hook(partial(self._keep, name)) for name, module in modules]

    def remove(self) -> None:
        """Take the hooks off again."""
        self._worker.model_runner.prepare_inputs = self._prepare
        for hook in self._hooks:
            hook.remove()

    def _prepared(self, *args: Any, **kwargs: Any) -> Any:
        self._batch = self._prepare(*args, **kwargs)
        return self._batch

    def _row(self, rows: int) -> int | None:
        """Returns which row of the running pass it is; None if the pass does not compute it."""
        batch, requests = self._batch, self._worker.das_runner.requests
        for i, name in enumerate(batch.req_ids):
            if requests[name].sampling_params.seed == self._seed:
                first, last = batch.query_start_loc_np[i : i + 2].tolist()
                row = first + self._position - int(batch.num_computed_tokens_np[i])
                return row if first <= row < min(last, rows) else None
        return None

    def _keep(self, name: str, module: Any, given: Any, output: Any) -> None:
        import torch

        output = output[0] if isinstance(output, tuple) else output
        row = self._row(len(output)) if isinstance(output, torch.Tensor) and output.dim() else None
        if row is None:
            return
        bits = output[row].detach().contiguous().cpu().view(torch.uint8).numpy().tobytes()
        self.digests.pop(name, None)  # a module that is called again comes last
        self.digests[name] = hashlib.sha256(bits).hexdigest()[:16]
        self.rows = len(output)


def differing_operation(
    llm: Any, seed: int, position: int, one: Callable[[], object], other: Callable[[], object]
) -> dict[str, Any]:
    """Roll out twice, by `one` and by `other`, and compare the outputs of all modules for one row. Returns the first
    module whose outputs differ (None: no layer's do), the rows of both passes, and the number of modules compared. For
    seed and position see LayerDigests."""
    found = []
    for roll_out in (one, other):
        (watch,) = llm.collective_rpc(LayerDigests, args=(seed, position))
        try:
            roll_out()
        finally:
            watch.remove()
        found.append(watch)
    names = [name for name in found[0].digests if name in found[1].digests]
    differing = [name for name in names if found[0].digests[name] != found[1].digests[name]]
    return {"operation": next(iter(differing), None), "rows": [watch.rows for watch in found], "modules": len(names)}
