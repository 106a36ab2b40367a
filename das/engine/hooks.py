"""What das relies on in vLLM, as data: every name that it replaces, calls or reads, with the parameters it expects.

What das does with them stands in das/engine/patches.py, worker.py, sampler.py and branches.py. das/engine/hook_check.py
compares the list with the sources of a vLLM.
"""

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


def _hooks(module: str, why: str, *names: str, only_for: str | None = None) -> tuple[Hook, ...]:
    """Hooks of one module. A name may bring its parameters: "Class.method(self, first)"."""
    found = []
    for name in names:
        dotted, _, rest = name.partition("(")
        parameters = tuple(part.strip() for part in rest.rstrip(")").split(",") if part.strip()) if rest else None
        found.append(Hook(f"vllm.{module}", dotted, why, parameters, only_for))
    return tuple(found)


SERVER_MODE = "server mode without a GPU"
BRANCHES = "drafts that branch"
COUPLED = "coupled drafts"
HEADS = "EAGLE-3 heads"
SELF_DRAFTS = "self-drafts"
SECOND_RUNNER = "planned: the second model runner, docs/model_runner.md"
LARGE_MATMULS = "tuned batch-invariant kernels of 7B and 8B models"

HOOKS = (
    # The front end.
    *_hooks(
        "v1.engine.input_processor",
        "refuses requests that the sampler cannot answer, accepts min_p and logit_bias with drafts",
        "InputProcessor.__init__(self, vllm_config)",
        "InputProcessor._validate_params(self, params, supported_tasks)",
        "InputProcessor.speculative_config",
    ),
    *_hooks("exceptions", "how a request is refused", "VLLMValidationError.__init__(self, message)"),
    *_hooks(
        "sampling_params",
        "what a request asks for",
        "SamplingParams.seed",
        "SamplingParams.extra_args",
        "SamplingParams.max_tokens",
        "SamplingParams.stop_token_ids",
        "SamplingParams.all_stop_token_ids",
        "SamplingParams.ignore_eos",
        "SamplingParams.allowed_token_ids",
        "SamplingParams.logprob_token_ids",
        "SamplingParams.thinking_token_budget",
    ),
    # The engine's configuration.
    *_hooks("config.parallel", "engines ask for das by their worker class", "ParallelConfig.worker_cls"),
    *_hooks("config.parallel", "part of the seed of a request without one", "ParallelConfig.data_parallel_index"),
    *_hooks("config.vllm", "the settings of das", "VllmConfig.additional_config"),
    *_hooks("config.vllm", "the second model runner has a sampler of its own", "VllmConfig.use_v2_model_runner"),
    # The worker.
    *_hooks(
        "v1.worker.gpu_worker",
        "the worker that das subclasses (GPU)",
        "Worker.init_device(self)",
        "Worker.use_v2_model_runner",
    ),
    *_hooks("v1.worker.cpu_worker", "the worker that das subclasses (CPU)", "CPUWorker.init_device(self)"),
    *_hooks("v1.worker.gpu_worker", "attention is hooked when the KV cache is made", "Worker.initialize_from_config"),
    *_hooks("v1.worker.gpu_worker", "a pass begins", "Worker.execute_model"),
    *_hooks(
        "v1.worker.gpu_worker",
        "new weights arrive",
        "Worker.load_model",
        "Worker.reload_weights",
        "Worker.update_weights",
        "Worker.finish_weight_update",
    ),
    *_hooks("v1.core.block_pool", "the prefix cache is seen to be empty after a sync", "BlockPool.blocks"),
    *_hooks("v1.core.kv_cache_manager", "the same", "KVCacheManager.block_pool"),
    # The model runner.
    *_hooks(
        "v1.worker.gpu_model_runner",
        "verification by keyed noise",
        "GPUModelRunner._sample(self, logits, spec_decode_metadata)",
        "GPUModelRunner.input_batch",
        "GPUModelRunner.requests",
        "GPUModelRunner.discard_request_mask",
        "GPUModelRunner.vllm_config",
        "GPUModelRunner.model_config",
    ),
    *_hooks(
        "v1.worker.gpu_model_runner",
        "a pass is counted when its tokens are on the host",
        "GPUModelRunner._bookkeeping_sync",
    ),
    *_hooks(
        "v1.worker.gpu_model_runner",
        "the memory of a pass with drafts is profiled (GPU)",
        "GPUModelRunner.profile_run(self)",
        "GPUModelRunner.max_num_tokens",
        "GPUModelRunner.max_num_reqs",
        "GPUModelRunner.num_spec_tokens",
        "GPUModelRunner.device",
    ),
    *_hooks(
        "v1.worker.gpu_model_runner",
        "graphs for passes in which nobody drafts (GPU)",
        "GPUModelRunner.uniform_decode_query_len",
        "GPUModelRunner.cudagraph_dispatcher",
    ),
    *_hooks("v1.cudagraph_dispatcher", "the same", "CudagraphDispatcher.uniform_decode_query_len"),
    *_hooks(
        "v1.worker.gpu_model_runner",
        "drafting with request ids",
        "GPUModelRunner.propose_draft_token_ids",
        "GPUModelRunner.drafter",
        "create_custom_proposer",
    ),
    *_hooks(
        "v1.worker.gpu_model_runner",
        "drafts near max_model_len",
        "GPUModelRunner._input_fits_in_drafter(self, common_attn_metadata)",
    ),
    *_hooks(
        "v1.worker.gpu_model_runner",
        "min_p and logit_bias with drafts",
        "build_logitsprocs(vllm_config, device, is_pin_memory, is_pooling_model, custom_logitsprocs)",
    ),
    *_hooks(
        "distributed.parallel_state",
        "one rank drafts for all",
        "get_tp_group()",
        "GroupCoordinator.is_first_rank",
        "GroupCoordinator.broadcast_object(self, obj, src)",
    ),
    *_hooks("v1.worker.gpu_model_runner", "where the attention's builders are", "GPUModelRunner.attn_groups"),
    *_hooks("v1.worker.gpu_model_runner", "the model whose weights are replaced", "GPUModelRunner.get_model(self)"),
    *_hooks("v1.worker.utils", "where the attention's builders are", "AttentionGroup.metadata_builders"),
    # The batch, as the sampler reads it.
    *_hooks(
        "v1.worker.gpu_input_batch",
        "the requests of a pass",
        "InputBatch.req_ids",
        "InputBatch.num_reqs",
        "InputBatch.generators",
        "InputBatch.sampling_metadata",
        "InputBatch.temperature_cpu",
        "InputBatch.num_tokens_no_spec",
        "InputBatch.num_prompt_tokens",
        "InputBatch.update_async_output_token_ids(self)",
        "CachedRequestState.prompt_token_ids",
        "CachedRequestState.output_token_ids",
        "CachedRequestState.sampling_params",
    ),
    *_hooks(
        "v1.sample.metadata",
        "the sampling parameters of a pass",
        *(
            f"SamplingMetadata.{name}"
            for name in (
                "all_greedy",
                "all_random",
                "top_p",
                "top_k",
                "max_num_logprobs",
                "logprob_token_ids",
                "no_penalties",
                "prompt_token_ids",
                "frequency_penalties",
                "presence_penalties",
                "repetition_penalties",
                "output_token_ids",
                "allowed_token_ids_mask",
                "bad_words_token_ids",
                "logitsprocs",
                "thinking_budget_state_holder",
            )
        ),
    ),
    *_hooks(
        "v1.spec_decode.metadata",
        "the drafted tokens of a pass",
        "SpecDecodeMetadata.draft_token_ids",
        "SpecDecodeMetadata.num_draft_tokens",
    ),
    *_hooks(
        "v1.outputs",
        "what the sampler returns",
        "SamplerOutput.sampled_token_ids",
        "SamplerOutput.logprobs_tensors",
        "LogprobsTensors.logprob_token_ids",
        "LogprobsTensors.logprobs",
        "LogprobsTensors.selected_token_ranks",
    ),
    *_hooks(
        "v1.sample.logits_processor",
        "the processors of min_p, min_tokens and logit_bias",
        "BUILTIN_LOGITS_PROCESSORS",
        "LogitsProcessors",
    ),
    *_hooks(
        "v1.sample.logits_processor.builtin",
        "their state, row by row",
        "MinPLogitsProcessor.min_p",
        "MinPLogitsProcessor.min_p_count",
        "LogitBiasLogitsProcessor.biases",
        "MinTokensLogitsProcessor.min_toks",
    ),
    *_hooks(
        "v1.sample.ops.topk_topp_sampler",
        "top-k and top-p by sorting",
        "apply_top_k_top_p_pytorch(logits, k, p)",
    ),
    *_hooks(
        "v1.sample.ops.penalties",
        "penalties",
        "apply_all_penalties(logits, prompt_token_ids, presence_penalties, frequency_penalties, repetition_penalties,"
        " output_token_ids)",
    ),
    *_hooks("v1.sample.ops.bad_words", "bad words", "apply_bad_words(logits, bad_words_token_ids, past_tokens_ids)"),
    # The CPU's kernels.
    *_hooks(
        "model_executor.layers.utils",
        "packed weights that can be packed again (CPU)",
        "dispatch_cpu_unquantized_gemm(layer, remove_weight)",
    ),
    *_hooks(
        "model_executor.layers.quantization.base_config",
        "layers that whoever loaded weights lets vLLM process again (CPU)",
        "QuantizeMethodBase.process_weights_after_loading(self, layer)",
    ),
    *_hooks(
        "distributed.device_communicators.cpu_communicator",
        "ranks that torchrun launched meet in shared memory of their own (CPU)",
        "_CPUSHMDistributed.make_group_name(communicator)",
    ),
    *_hooks(
        "v1.attention.backends.cpu_attn",
        "attention whose bits do not depend on the batch (CPU)",
        "CPUAttentionMetadataBuilder.build(self, common_prefix_len, common_attn_metadata, fast_build)",
        "envs",
    ),
    *_hooks(
        "v1.attention.backend",
        "queries in pieces (CPU)",
        *(
            f"CommonAttentionMetadata.{name}"
            for name in (
                "num_reqs",
                "max_query_len",
                "query_start_loc",
                "seq_lens",
                "block_table_tensor",
                "causal",
            )
        ),
    ),
    # A GPU's kernels.
    *_hooks("config.compilation", "norms that are batch-invariant (GPU)", "CompilationConfig.custom_ops"),
    *_hooks(
        "model_executor.determinism.batch_invariant_configs",
        "tiles for more shapes (GPU)",
        "_BATCH_INVARIANT_MATMUL_TUNED_CONFIGS",
        only_for=LARGE_MATMULS,
    ),
    # Drafts that branch.
    *_hooks(
        "v1.worker.gpu_model_runner",
        "rows of branches, their positions and their places in the KV cache",
        "GPUModelRunner._prepare_inputs(self, scheduler_output, num_scheduled_tokens)",
        *(
            f"GPUModelRunner.{name}"
            for name in (
                "positions",
                "kv_caches",
                "kv_cache_config",
                "_kernel_block_sizes",
                "compilation_config",
                "parallel_config",
                "shared_kv_cache_layers",
                "uses_mrope",
            )
        ),
        only_for=BRANCHES,
    ),
    *_hooks(
        "v1.core.sched.output",
        "which drafts the scheduler found room for",
        "SchedulerOutput.scheduled_spec_decode_tokens",
        only_for=BRANCHES,
    ),
    *_hooks(
        "v1.worker.gpu_input_batch",
        "where the requests lie in the KV cache",
        "InputBatch.num_computed_tokens_cpu",
        "InputBatch.block_table",
        only_for=BRANCHES,
    ),
    *_hooks(
        "v1.worker.block_table",
        "the same",
        "BlockTable.block_table",
        "BlockTable.slot_mapping",
        only_for=BRANCHES,
    ),
    *_hooks(
        "v1.kv_cache_interface",
        "blocks that the scheduler does not know of",
        "FullAttentionSpec",
        *(f"KVCacheConfig.{name}" for name in ("num_blocks", "kv_cache_tensors", "kv_cache_groups")),
        *(f"KVCacheTensor.{name}" for name in ("size", "layer_stride", "block_stride")),
        only_for=BRANCHES,
    ),
    *_hooks(
        "v1.worker.utils",
        "blocks are copied",
        "copy_kv_cache_blocks_inplace(kv_caches, num_blocks, kv_cache_block_copies)",
        only_for=BRANCHES,
    ),
    *_hooks(
        "v1.attention.backend",
        "every run of nodes is a request of its own",
        *(
            f"CommonAttentionMetadata.{name}"
            for name in ("num_actual_tokens", "query_start_loc_cpu", "seq_lens_cpu_upper_bound", "is_prefilling")
        ),
        only_for=BRANCHES,
    ),
    *(
        hook
        for module, backend in (("cpu_attn", "CPUAttentionBackendImpl"), ("flash_attn", "FlashAttentionImpl"))
        for hook in _hooks(
            f"v1.attention.backends.{module}",
            "keys and values are written for branches too",
            f"{backend}.forward(self, layer, query, key, value, kv_cache, attn_metadata, output)",
            f"{backend}.do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping)",
            only_for=BRANCHES,
        )
    ),
    *_hooks(
        "v1.cudagraph_dispatcher",
        "no full graph where drafts branch",
        "CudagraphDispatcher.dispatch",
        only_for=BRANCHES,
    ),
    *_hooks(
        "sampling_params",
        "requests with a grammar draft chains",
        "SamplingParams.structured_outputs",
        only_for=BRANCHES,
    ),
    # Coupled drafts of vLLM's own methods.
    *_hooks(
        "v1.spec_decode.llm_base_proposer",
        "drafters that run a model draw with the verifier's noise",
        "SpecDecodeBaseProposer._sample_draft_tokens(self, hidden_states, sampling_metadata)",
        "SpecDecodeBaseProposer._greedy_sample(self, hidden_states)",
        "SpecDecodeBaseProposer.propose",
        "SpecDecodeBaseProposer.model",
        "SpecDecodeBaseProposer.num_speculative_tokens",
        "SpecDecodeBaseProposer.parallel_drafting",
        only_for=COUPLED,
    ),
    # Draft heads.
    *_hooks(
        "config.speculative",
        "where the head lies",
        "SpeculativeConfig.model",
        "SpeculativeConfig.method",
        only_for=HEADS,
    ),
    *_hooks(
        "model_executor.models.llama_eagle3",
        "new weights of the head; whether vLLM shares its lm_head",
        "Eagle3LlamaForCausalLM.load_weights(self, weights)",
        "Eagle3LlamaForCausalLM.lm_head",
        only_for=HEADS,
    ),
    *_hooks(
        "model_executor.models.llama_eagle3",
        "a history drafts beside the head: its passes",
        "Eagle3LlamaForCausalLM.combine_hidden_states(self, hidden_states)",
        "Eagle3LlamaForCausalLM.forward(self, input_ids, positions, hidden_states, inputs_embeds)",
        only_for=HEADS,
    ),
    *_hooks(
        "v1.spec_decode.llm_base_proposer",
        "the same",
        "SpecDecodeBaseProposer.draft_attn_groups",
        "SpecDecodeBaseProposer.kv_cache_gid",
        only_for=HEADS,
    ),
    *_hooks("v1.worker.gpu_model_runner", "the same", "GPUModelRunner.query_start_loc", only_for=HEADS),
    *_hooks("config.speculative", "the same", "SpeculativeConfig.disable_padded_drafter_batch", only_for=HEADS),
    # Self-drafts.
    *_hooks(
        "forward_context",
        "passes of the policy's model that draft",
        "set_forward_context(attn_metadata, vllm_config, num_tokens)",
        only_for=SELF_DRAFTS,
    ),
    *_hooks(
        "v1.attention.backend",
        "the same",
        "CommonAttentionMetadata.max_seq_len",
        "CommonAttentionMetadata.slot_mapping",
        only_for=SELF_DRAFTS,
    ),
    *_hooks(
        "v1.worker.utils",
        "the same",
        "AttentionGroup.layer_names",
        "AttentionGroup.get_metadata_builder(self)",
        only_for=SELF_DRAFTS,
    ),
    *_hooks(
        "model_executor.layers.linear", "the layers that are quantized for them", "LinearBase", only_for=SELF_DRAFTS
    ),
    *_hooks(
        "_custom_ops",
        "how they are multiplied (CPU)",
        "create_onednn_mm(weight, primitive_cache_size)",
        "onednn_mm(dnnl_handler, x, bias)",
        "create_onednn_scaled_mm(weight, weight_scales, output_type, dynamic_quant, use_azp, primitive_cache_size)",
        "onednn_scaled_int8_quant(input, scale, azp, symmetric)",
        "onednn_scaled_mm(dnnl_handler, x, output, input_scale, input_zp, input_zp_adj, bias)",
        only_for=SELF_DRAFTS,
    ),
    *_hooks(
        "_custom_ops",
        "the same (GPU)",
        "scaled_int8_quant(input)",
        "cutlass_scaled_mm(a, b, scale_a, scale_b, out_dtype, bias)",
        only_for=SELF_DRAFTS,
    ),
    *_hooks(
        "model_executor.kernels.linear",
        "the same (GPU)",
        "choose_mp_linear_kernel(config)",
        only_for=SELF_DRAFTS,
    ),
    *_hooks(
        "model_executor.kernels.linear.mixed_precision.MPLinearKernel",
        "the same (GPU)",
        "MPLinearLayerConfig.full_weight_shape",
        "MPLinearLayerConfig.zero_points",
        "MPLinearKernel.process_weights_after_loading(self, layer)",
        "MPLinearKernel.apply_weights(self, layer, x, bias)",
        only_for=SELF_DRAFTS,
    ),
    *_hooks(
        "model_executor.parameter",
        "the same (GPU)",
        "GroupQuantScaleParameter",
        "PackedvLLMParameter",
        only_for=SELF_DRAFTS,
    ),
    # What drafts and keyed verification in the second model runner would rest on. Nothing of das uses it yet.
    *_hooks(
        "v1.worker.gpu.spec_decode",
        "what drafts is chosen",
        "init_speculator(vllm_config, device, req_states)",
        only_for=SECOND_RUNNER,
    ),
    *_hooks(
        "v1.worker.gpu.spec_decode.speculator",
        "what drafts, on the device",
        "BaseSpeculator.propose",
        "BaseSpeculator.init_cudagraph_manager(self, cudagraph_mode)",
        "BaseSpeculator.capture(self)",
        only_for=SECOND_RUNNER,
    ),
    *_hooks(
        "v1.worker.gpu.spec_decode.rejection_sampler",
        "what verifies, in pieces",
        "RejectionSampler.__call__(self, logits, input_batch, draft_logits)",
        "gather_draft_sampled",
        only_for=SECOND_RUNNER,
    ),
    *_hooks(
        "v1.worker.gpu.model_states.interface",
        "a sampler and a verifier of somebody else's",
        "ModelState.custom_sampler(self, sampler)",
        only_for=SECOND_RUNNER,
    ),
    *_hooks(
        "v1.worker.gpu.sample.gumbel",
        "noise keyed by seed and position",
        "gumbel_sample(logits, expanded_idx_mapping, temperature, seed, pos, apply_temperature, is_drafting)",
        only_for=SECOND_RUNNER,
    ),
    *_hooks(
        "v1.worker.gpu.model_runner",
        "drafts of the pass, by request",
        "GPUModelRunner.speculator",
        "GPUModelRunner.rejection_sampler",
        "GPUModelRunner.req_states",
        only_for=SECOND_RUNNER,
    ),
    # A trainer's weights, sent to a server's workers.
    *_hooks(
        "config.vllm", "the backend that an engine asks for", "VllmConfig.weight_transfer_config", only_for=SERVER_MODE
    ),
    *_hooks(
        "distributed.weight_transfer.factory",
        "a backend without CUDA is added",
        "WeightTransferEngineFactory._registry",
        "WeightTransferEngineFactory.register_engine(cls, name, module_path_or_cls, class_name)",
        only_for=SERVER_MODE,
    ),
    *_hooks(
        "distributed.weight_transfer.base",
        "what a backend is",
        "WeightTransferInitInfo",
        "WeightTransferUpdateInfo",
        "WeightTransferEngine.init_transfer_engine(self, init_info)",
        "WeightTransferEngine.start_weight_update",
        "WeightTransferEngine.update_weights",
        "WeightTransferEngine.parse_update_info",
        "WeightTransferEngine.receive_weights",
        "WeightTransferEngine.finish_weight_update",
        "WeightTransferEngine.shutdown(self)",
        only_for=SERVER_MODE,
    ),
    *_hooks(
        "distributed.utils",
        "trainer and workers meet",
        "stateless_init_torch_distributed_process_group"
        "(host, port, rank, world_size, backend, group_name, return_store, listen_socket, timeout)",
        only_for=SERVER_MODE,
    ),
)
