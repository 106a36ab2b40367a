"""DasWorker puts das into vLLM's worker: it hooks what vLLM calls, and leads calls by `collective_rpc` to who answers.

An engine asks for it by `worker_cls="das.engine.worker.DasWorker"`. `worker_extension_cls` stays free for others.
"""

import json
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from das.engine.versions import require_vllm
from das.general.errors import NotInstalled

require_vllm()  # first, because another version may lack what is imported next

import numpy as np  # noqa: E402
import torch  # noqa: E402
from vllm.distributed import get_tp_group  # noqa: E402
from vllm.logger import init_logger  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402

from das.budget.latency import ON_GPU, LatencyModel  # noqa: E402
from das.drafter.saved import SavedText  # noqa: E402
from das.engine.checked_policies import policy_of  # noqa: E402
from das.engine.patches import cpu, gpu, weights  # noqa: E402
from das.engine.patches.model_runner import check_model_runner  # noqa: E402
from das.engine.patches.replace import put  # noqa: E402
from das.engine.rollouts.report import Finished, Plain  # noqa: E402
from das.engine.runner.runner import Runner, runner_under_construction  # noqa: E402
from das.engine.running import RunningRollout  # noqa: E402
from das.engine.settings import BITS, DasOptions, das_options, drafts_by_das, refuse_head  # noqa: E402
from das.general.side_output import stage  # noqa: E402
from das.models.draft_passes import blocks_needed, with_scratch_blocks  # noqa: E402
from das.models.self_draft import QuantizedLayers, require_self_draft  # noqa: E402
from das.verify.forced import Forced  # noqa: E402
from das.weights.weight_check import WeightSample, fingerprint, lost_weights  # noqa: E402

# An unannounced rollout (see DasWorker) ends after so many passes or requests, so that memory is bounded.
MAX_PASSES = 2**14
MAX_REQUESTS = 2**16
logger = init_logger("vllm.das")  # for what vLLM's log says of its engine, too


def _platform_worker() -> Any:
    if current_platform.is_cpu():
        from vllm.v1.worker.cpu_worker import CPUWorker

        return CPUWorker
    if not current_platform.is_cuda_alike():
        raise NotInstalled(
            f"das does not support {current_platform.device_name}: it runs on CPUs and on GPUs with CUDA"
        )
    from vllm.v1.worker.gpu_worker import Worker

    return Worker


PlatformWorker = _platform_worker()


class DasWorker(PlatformWorker):  # type: ignore[misc, valid-type]  # chosen at run time
    """The platform's worker, with keyed verification, and with drafts if the engine asks for them.

    An announced rollout begins with `das_begin_rollout` and ends with `das_end_rollout`. Passes outside of announced
    rollouts form an unannounced rollout, which ends when new weights arrive, after MAX_PASSES passes or MAX_REQUESTS
    requests, or with a call of `das_end_rollout`.
    """

    model_runner: Any  # vLLM's
    das_runner: Runner  # what das adds to it
    das_running: RunningRollout

    def __init__(self, *args: Any, **kwargs: Any):
        with cpu.unbound_on_one_node():
            super().__init__(*args, **kwargs)
        # Settings of another form, and engines that cannot do what they ask for, are refused before anything is built.
        options = das_options(self.vllm_config)
        # The options; None if nothing drafts, or if one of vLLM's own drafters does.
        self._das_options = options if drafts_by_das(self.vllm_config) else None
        if self._das_options is not None and self._das_options.self_draft is not None:
            require_self_draft(self.vllm_config, self._das_options.self_draft)
        check_model_runner(self.vllm_config)
        if self.parallel_config.pipeline_parallel_size > 1:
            raise NotInstalled("das does not support pipeline parallelism: set pipeline_parallel_size=1")
        refuse_head(self.vllm_config)
        self._das_bits = gpu.keeps_bits(options.exact, self.vllm_config.model_config.dtype)
        gpu.keep_norms_invariant(self.vllm_config)
        if not current_platform.is_cpu():
            gpu.choose_attention(self.vllm_config)
            LatencyModel.usual = ON_GPU
        self._das_proposers: dict[str, Any] = {}  # by the names given to das_use_proposer
        self._das_new_weights = False  # whether weights arrived since the last pass
        self._das_expected: WeightSample | None = None  # keeps some of the weights that a server's trainer sends

    # ---- what vLLM calls ----

    def init_device(self) -> None:
        """Build vLLM's model runner, and put das's hooks on it."""
        with runner_under_construction(self.vllm_config), cpu.own_shared_memory(self.vllm_config):
            super().init_device()
        self.das_runner = Runner(self.model_runner, self._das_bits)
        self.das_running = RunningRollout(self.das_runner)
        speculative_config = self.vllm_config.speculative_config
        logger.info(
            "das verifies by keyed noise; exact: %s; drafts: %s",
            BITS if self._das_bits else "distribution",
            "none, because there is no speculative_config"
            if speculative_config is None
            else f"up to {speculative_config.num_speculative_tokens} tokens by {speculative_config.method}"
            + (", coupled" if self.das_runner.coupled else ""),
        )

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the weights with which the engine starts."""
        weights.offer_weight_transfer(self.vllm_config)
        stage("loads the policy into its engine")
        with weights.kept_weights(invariant=True):
            super().load_model(*args, **kwargs)
        if self._das_options is not None and (own := self._das_options.self_draft) is not None:
            self.das_runner.quantized = QuantizedLayers(self.model_runner.get_model(), own)
        weights.hook_loading(self.model_runner.get_model(), self._new_weights)
        if current_platform.is_cpu():
            cpu.keep_activations_apart(self.model_runner.get_model())
            cpu.keep_adapters_apart(self.model_runner.get_model())

    def sleep(self, *args: Any, **kwargs: Any) -> None:
        """Free memory in vLLM's sleep mode, also the memory of the self-drafts' quantized weights."""
        if self.das_runner.quantized is not None:
            self.das_runner.quantized.forget()
        super().sleep(*args, **kwargs)

    def reload_weights(self, *args: Any, **kwargs: Any) -> None:
        """Load other weights from files or from an iterator."""
        with weights.kept_weights(invariant=True):
            super().reload_weights(*args, **kwargs)
        self._das_new_weights = True

    def update_weights(self, *args: Any, **kwargs: Any) -> None:
        """Receive some of the new weights from a trainer."""
        with weights.kept_weights(invariant=True):
            super().update_weights(*args, **kwargs)
        self._das_new_weights = True

    def finish_weight_update(self, *args: Any, **kwargs: Any) -> None:
        """Finish a trainer's weight update: load the remaining weights."""
        with weights.kept_weights(invariant=True):
            super().finish_weight_update(*args, **kwargs)
        self._das_new_weights = True

    def determine_available_memory(self) -> int:
        """Returns the bytes for the KV cache of requests. On a GPU, the bytes of the scratch blocks are subtracted,
        because these blocks are added later."""
        available: int = super().determine_available_memory()
        if self.model_runner.device.type == "cpu":  # there the user sets this size, for requests alone
            return available
        specs = self.model_runner.get_kv_cache_spec().values()
        blocks = self._scratch_blocks(next(iter(specs)).block_size)
        return available - blocks * sum(spec.page_size_bytes for spec in specs)

    def _scratch_blocks(self, block_size: int) -> int:
        """Returns the number of KV blocks into which draft passes write."""
        if self._das_options is None or self._das_options.self_draft is None:
            return 0
        of_request = blocks_needed(self.vllm_config.speculative_config.num_speculative_tokens, block_size)
        return of_request * self.vllm_config.scheduler_config.max_num_seqs

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """Make the KV cache and the builders of the attention's metadata, and hook the builders."""
        scratch = self._scratch_blocks(kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size)
        own = kv_cache_config.num_blocks  # number of blocks that the scheduler knows of
        if scratch:
            logger.info("das drafts in %d KV blocks beside the %d of requests", scratch, own)
            kv_cache_config = with_scratch_blocks(kv_cache_config, scratch)
        super().initialize_from_config(kv_cache_config)
        put(self.cache_config, num_gpu_blocks=own)
        if current_platform.is_cpu():
            cpu.hook_attention(self.model_runner)
        self.das_runner.draft_blocks = range(own, own + scratch)
        if self.das_runner.flights.draft_later:
            logger.info("das: the lengths of drafts are decided %s", self.das_runner.decide_lengths())

    def compile_or_warm_up_model(self) -> Any:
        """Capture graphs, and run made-up requests so that kernels are compiled. Nothing is learned from them."""
        stage("compiles its engine's kernels and warms up")
        self.das_runner.flights.is_warming_up = True
        self.das_running.begin(0, evaluation=True)
        times = super().compile_or_warm_up_model()
        self.das_running.end(0)
        self.das_runner.flights.is_warming_up = False
        return times

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        """Run a pass. Before that, take new weights into use, or end an unannounced rollout that is long enough. A call
        without a pass only says which requests have ended: they join the history now, not with the next pass."""
        if self._das_new_weights:
            self._take_new_weights()
        elif not self.das_running.is_announced:
            meter = self.das_runner.flights.meter
            if len(meter.step_time_s) >= MAX_PASSES or meter.num_requests >= MAX_REQUESTS:
                self.das_running.end_unannounced()
        output = super().execute_model(*args, **kwargs)
        scheduled = kwargs["scheduler_output"] if "scheduler_output" in kwargs else args[0]
        proposer = self.das_runner.flights.proposer
        if not scheduled.total_num_scheduled_tokens and proposer is not None:
            proposer.end_over()
        return output

    def _new_weights(self, tensors: weights.Tensors) -> weights.Tensors:
        """Note that the model loads these weights, and keep those that `das_lost_of_expected` will look for."""
        self._das_new_weights = True
        return tensors if self._das_expected is None else self._das_expected.watch(tensors)

    def _take_new_weights(self) -> None:
        """Start to use new weights: pack linear layers again, count the version, and end an
        unannounced rollout."""
        self._das_new_weights = False
        self.das_runner.flights.settle()
        weights.repack_linear_layers(self.model_runner.get_model())
        if self.das_runner.quantized is not None:
            self.das_runner.quantized.newest += 1
        if not self.das_running.is_announced and self.das_runner.flights.meter.step_time_s:
            self.das_running.end_unannounced()

    # ---- what callers call through collective_rpc ----

    def das_call(self, method: str, *args: Any) -> str:
        """Call one of the methods below. Returns its result as Python's JSON, because a server's JSON has no NaN."""
        return json.dumps(getattr(self, method)(*args))

    def das_policy(self) -> tuple[Any, ...]:
        """Returns the fields of das.engine.checked_policies.Policy."""
        return astuple(policy_of(self.model_config, self._das_bits))

    def das_meet_trainer(self) -> None:
        """Prepare for a new trainer of the server: end an evaluation or rollout that the last trainer left open."""
        self.das_running.leave()

    def das_begin_rollout(self, num_requests: int, evaluation: bool = False) -> None:
        """See RunningRollout.begin."""
        self.das_running.begin(num_requests, evaluation)

    def das_begin_turn(self, num_requests: int) -> None:
        """See RunningRollout.begin_turn."""
        self.das_running.begin_turn(num_requests)

    def das_end_turn(self) -> Plain:
        """See RunningRollout.end_turn."""
        return self.das_running.end_turn()

    def das_end_rollout(self, history_tick: int) -> Plain:
        """See RunningRollout.end."""
        return self.das_running.end(history_tick)

    def das_finished(self, requests: list[str]) -> list[Finished]:
        """See RunningRollout.finished."""
        return self.das_running.finished(requests)

    def das_use_proposer(self, name: str, options: DasOptions | None) -> None:
        """Draft with the proposer of this name from now on. This lets one engine compare drafters and budgets.

        The first use of a name makes a new proposer, which has its own history. options: EngineSettings.das_options of
        the new proposer; self-drafts work only in an engine built for them. None: it is of the same class as the
        proposer in use.
        """
        self.das_runner.flights.settle()
        if name not in self._das_proposers:
            if self.das_runner.flights.drafter is None:
                raise NotInstalled("this engine has no drafter of which there could be another: build one that drafts")
            self._das_proposers[name] = self.das_runner.new_drafter(options)
        self.das_runner.flights.drafter = self._das_proposers[name]

    def das_add_history(self, history_tick: int, texts: Sequence[SavedText]) -> None:
        """Add responses of other engines to the history. history_tick: the window's present tick. Does nothing unless
        das drafts in this engine.
        """
        if (proposer := self.das_runner.flights.proposer) is not None:
            proposer.add_history(history_tick, texts)

    def das_save_history(self, path: str) -> None:
        """Write the drafter's history and learned weights, for `drafter.warm`. Does nothing unless das drafts. Of the
        ranks of an engine only the first one drafts, and so has a history."""
        if (proposer := self.das_runner.flights.proposer) is not None and get_tp_group().is_first_rank:
            proposer.draft_round.drafter.save(Path(path))

    def das_save_state(self, folder: str) -> None:
        """Write the drafter's part of a checkpoint into `folder`. Does nothing where nothing is learned."""
        self.das_running.save_learned(Path(folder))

    def das_load_state(self, folder: str) -> None:
        """Load what `das_save_state` wrote, to draft as the engine that wrote it would. Does nothing where nothing is
        learned."""
        self.das_running.load_learned(Path(folder))

    def das_force(self, responses: dict[str, list[int]], remembered: dict[str, np.ndarray] | None = None) -> None:
        """Let requests that name one of `responses` emit it. An empty dict ends this. remembered: see Forced."""
        self.das_runner.flights.settle()
        forced = Forced(responses, remembered or {}) if responses else None
        self.das_runner.draws.forced = forced
        self.das_runner.flights.requests.recorded = () if forced is None else forced.recorded

    def das_use_new_weights(self) -> None:
        """Start now to use the weights loaded since the last pass. Without this call, the next pass does so."""
        if self._das_new_weights:
            self._take_new_weights()

    def das_load_head(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> str:
        """Draft with these weights of a head from now on. The prefix cache must be empty.

        Returns which of them did not arrive, in words; empty if the head computes with all of them.
        """
        head: Any = getattr(self.model_runner.speculator, "model", None)
        if head is None:
            return "the engine has no drafter that is a model"
        if head.lm_head is self.model_runner.get_model().lm_head:  # vLLM shares one if the weights are equal
            return "its lm_head equals the policy's, and vLLM shares them: train the head before the engine is built"
        head.load_weights(tensors)
        weights.repack_linear_layers(head)
        return lost_weights(head, tensors)

    def das_lost_weights(self, tensors: Sequence[tuple[str, torch.Tensor]], turn: int) -> str:
        """Returns which of the tensors that were just loaded did not arrive, in words; empty if all of them did.

        turn: see `lost_weights`.
        """
        noted = self._das_new_weights
        lost = lost_weights(self.model_runner.get_model(), tensors, turn)
        self._das_new_weights = noted  # the check loads the same tensors again, so no weights are new
        return lost

    def das_expect_weights(self, every: int, syncs: int) -> None:
        """Keep a sample of the weights that come next, which `das_lost_of_expected` compares. See WeightSample."""
        self._das_expected = WeightSample(every, syncs)

    def das_lost_of_expected(self) -> tuple[str, dict[str, int]]:
        """Returns which tensors of the sample that arrived are not in the model, in words; and the fingerprint of each
        that arrived, by name."""
        expected, self._das_expected = self._das_expected, None
        assert expected is not None, "no weights were expected"
        arrived = dict(expected.take())
        self.das_use_new_weights()
        lost = self.das_lost_weights(list(arrived.items()), expected.syncs)
        return lost, dict(zip(arrived, fingerprint(arrived.values()), strict=True))
