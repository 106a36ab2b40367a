"""Names of vLLM that single features of das rely on. A vLLM without them lacks the feature and is not refused."""

from das.engine.contract.hook import hooks

SERVER_MODE = "server mode without a GPU"
BRANCHES = "drafts that branch"
COUPLED = "coupled drafts"
HEADS = "EAGLE-3 heads"
DAS_EAGLE3 = "das_eagle3"
SELF_DRAFTS = "self-drafts"
SECOND_RUNNER = "planned: the second model runner, docs/model_runner.md"
BROADCAST = "weights that are broadcast to a cluster of GPUs"
LARGE_MATMULS = "tuned batch-invariant kernels of 7B and 8B models"

FEATURES = (
    *hooks(
        "model_executor.determinism.batch_invariant_configs",
        "tiles for more shapes (GPU)",
        "_BATCH_INVARIANT_MATMUL_TUNED_CONFIGS",
        only_for=LARGE_MATMULS,
    ),
    # Drafts that branch.
    *hooks(
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
    *hooks(
        "v1.core.sched.output",
        "which drafts the scheduler found room for",
        "SchedulerOutput.scheduled_spec_decode_tokens",
        only_for=BRANCHES,
    ),
    *hooks(
        "v1.worker.gpu_input_batch",
        "where the requests lie in the KV cache",
        "InputBatch.num_computed_tokens_cpu",
        "InputBatch.block_table",
        only_for=BRANCHES,
    ),
    *hooks(
        "v1.worker.block_table",
        "the same",
        "BlockTable.block_table",
        "BlockTable.slot_mapping",
        only_for=BRANCHES,
    ),
    *hooks(
        "v1.kv_cache_interface",
        "blocks that the scheduler does not know of",
        "FullAttentionSpec",
        *(f"KVCacheConfig.{name}" for name in ("num_blocks", "kv_cache_tensors", "kv_cache_groups")),
        *(f"KVCacheTensor.{name}" for name in ("size", "layer_stride", "block_stride")),
        only_for=BRANCHES,
    ),
    *hooks(
        "v1.worker.utils",
        "blocks are copied",
        "copy_kv_cache_blocks_inplace(kv_caches, num_blocks, kv_cache_block_copies)",
        only_for=BRANCHES,
    ),
    *hooks(
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
        for hook in hooks(
            f"v1.attention.backends.{module}",
            "keys and values are written for branches too",
            f"{backend}.forward(self, layer, query, key, value, kv_cache, attn_metadata, output)",
            f"{backend}.do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping)",
            only_for=BRANCHES,
        )
    ),
    *hooks(
        "v1.cudagraph_dispatcher",
        "no full graph where drafts branch",
        "CudagraphDispatcher.dispatch",
        only_for=BRANCHES,
    ),
    *hooks(
        "sampling_params",
        "requests with a grammar draft chains",
        "SamplingParams.structured_outputs",
        only_for=BRANCHES,
    ),
    # Coupled drafts of vLLM's own methods.
    *hooks(
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
    *hooks(
        "config.speculative",
        "where the head lies",
        "SpeculativeConfig.model",
        "SpeculativeConfig.method",
        only_for=HEADS,
    ),
    *hooks(
        "model_executor.models.llama_eagle3",
        "new weights of the head; whether vLLM shares its lm_head",
        "Eagle3LlamaForCausalLM.load_weights(self, weights)",
        "Eagle3LlamaForCausalLM.lm_head",
        only_for=HEADS,
    ),
    # A history beside a draft head.
    *hooks(
        "model_executor.models.llama_eagle3",
        "passes of a head beside a history",
        "Eagle3LlamaForCausalLM.combine_hidden_states(self, hidden_states)",
        "Eagle3LlamaForCausalLM.forward(self, input_ids, positions, hidden_states, inputs_embeds)",
        only_for=DAS_EAGLE3,
    ),
    *hooks(
        "v1.spec_decode.llm_base_proposer",
        "the same",
        "SpecDecodeBaseProposer.draft_attn_groups",
        "SpecDecodeBaseProposer.kv_cache_gid",
        only_for=DAS_EAGLE3,
    ),
    *hooks(
        "forward_context",
        "the same",
        "set_forward_context(attn_metadata, vllm_config, num_tokens)",
        only_for=DAS_EAGLE3,
    ),
    *hooks(
        "v1.worker.utils",
        "the same",
        "AttentionGroup.layer_names",
        "AttentionGroup.get_metadata_builder(self)",
        only_for=DAS_EAGLE3,
    ),
    *hooks(
        "v1.worker.gpu_model_runner",
        "which hidden states are whose",
        "GPUModelRunner.query_start_loc",
        only_for=DAS_EAGLE3,
    ),
    *hooks("v1.worker.gpu_input_batch", "the same", "InputBatch.num_computed_tokens_cpu", only_for=DAS_EAGLE3),
    *hooks("v1.worker.block_table", "the head's KV blocks", "BlockTable.block_table", only_for=DAS_EAGLE3),
    *hooks(
        "v1.core.sched.output",
        "which blocks are new, and the head has read nothing in them",
        "SchedulerOutput.scheduled_new_reqs",
        "SchedulerOutput.scheduled_cached_reqs",
        "NewRequestData.block_ids",
        "NewRequestData.num_computed_tokens",
        "CachedRequestData.req_ids",
        "CachedRequestData.resumed_req_ids",
        "CachedRequestData.new_block_ids",
        "CachedRequestData.num_computed_tokens",
        only_for=DAS_EAGLE3,
    ),
    *hooks("v1.kv_cache_interface", "the same", "KVCacheConfig.num_blocks", only_for=DAS_EAGLE3),
    *hooks(
        "config.speculative",
        "emitted tokens come as lists",
        "SpeculativeConfig.disable_padded_drafter_batch",
        only_for=DAS_EAGLE3,
    ),
    # Self-drafts.
    *hooks(
        "forward_context",
        "passes of the policy's model that draft",
        "set_forward_context(attn_metadata, vllm_config, num_tokens)",
        only_for=SELF_DRAFTS,
    ),
    *hooks(
        "v1.attention.backend",
        "the same",
        "CommonAttentionMetadata.max_seq_len",
        "CommonAttentionMetadata.slot_mapping",
        only_for=SELF_DRAFTS,
    ),
    *hooks(
        "v1.worker.utils",
        "the same",
        "AttentionGroup.layer_names",
        "AttentionGroup.get_metadata_builder(self)",
        only_for=SELF_DRAFTS,
    ),
    *hooks(
        "model_executor.layers.linear", "the layers that are quantized for them", "LinearBase", only_for=SELF_DRAFTS
    ),
    *hooks(
        "_custom_ops",
        "how they are multiplied (CPU)",
        "create_onednn_mm(weight, primitive_cache_size)",
        "onednn_mm(dnnl_handler, x, bias)",
        "create_onednn_scaled_mm(weight, weight_scales, output_type, dynamic_quant, use_azp, primitive_cache_size)",
        "onednn_scaled_int8_quant(input, scale, azp, symmetric)",
        "onednn_scaled_mm(dnnl_handler, x, output, input_scale, input_zp, input_zp_adj, bias)",
        only_for=SELF_DRAFTS,
    ),
    *hooks(
        "_custom_ops",
        "the same (GPU)",
        "scaled_int8_quant(input)",
        "cutlass_scaled_mm(a, b, scale_a, scale_b, out_dtype, bias)",
        only_for=SELF_DRAFTS,
    ),
    *hooks(
        "model_executor.kernels.linear",
        "the same (GPU)",
        "choose_mp_linear_kernel(config)",
        only_for=SELF_DRAFTS,
    ),
    *hooks(
        "model_executor.kernels.linear.mixed_precision.MPLinearKernel",
        "the same (GPU)",
        "MPLinearLayerConfig.full_weight_shape",
        "MPLinearLayerConfig.zero_points",
        "MPLinearKernel.process_weights_after_loading(self, layer)",
        "MPLinearKernel.apply_weights(self, layer, x, bias)",
        only_for=SELF_DRAFTS,
    ),
    *hooks(
        "model_executor.parameter",
        "the same (GPU)",
        "GroupQuantScaleParameter",
        "PackedvLLMParameter",
        only_for=SELF_DRAFTS,
    ),
    # What drafts and keyed verification in the second model runner would rest on. Nothing of das uses it yet.
    *hooks(
        "v1.worker.gpu.spec_decode",
        "what drafts is chosen",
        "init_speculator(vllm_config, device, req_states)",
        only_for=SECOND_RUNNER,
    ),
    *hooks(
        "v1.worker.gpu.spec_decode.speculator",
        "what drafts, on the device",
        "BaseSpeculator.propose",
        "BaseSpeculator.init_cudagraph_manager(self, cudagraph_mode)",
        "BaseSpeculator.capture(self)",
        only_for=SECOND_RUNNER,
    ),
    *hooks(
        "v1.worker.gpu.spec_decode.rejection_sampler",
        "what verifies, in pieces",
        "RejectionSampler.__call__(self, logits, input_batch, draft_logits)",
        "gather_draft_sampled",
        only_for=SECOND_RUNNER,
    ),
    *hooks(
        "v1.worker.gpu.model_states.interface",
        "a sampler and a verifier of somebody else's",
        "ModelState.custom_sampler(self, sampler)",
        only_for=SECOND_RUNNER,
    ),
    *hooks(
        "v1.worker.gpu.sample.gumbel",
        "noise keyed by seed and position",
        "gumbel_sample(logits, expanded_idx_mapping, temperature, seed, pos, apply_temperature, is_drafting)",
        only_for=SECOND_RUNNER,
    ),
    *hooks(
        "v1.worker.gpu.model_runner",
        "drafts of the pass, by request",
        "GPUModelRunner.speculator",
        "GPUModelRunner.rejection_sampler",
        "GPUModelRunner.req_states",
        only_for=SECOND_RUNNER,
    ),
    # A trainer's weights, sent to a server's workers.
    *hooks(
        "config.vllm", "the backend that an engine asks for", "VllmConfig.weight_transfer_config", only_for=SERVER_MODE
    ),
    *hooks(
        "distributed.weight_transfer.factory",
        "a backend without CUDA is added",
        "WeightTransferEngineFactory._registry",
        "WeightTransferEngineFactory.register_engine(cls, name, module_path_or_cls, class_name)",
        only_for=SERVER_MODE,
    ),
    *hooks(
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
    *hooks(
        "distributed.utils",
        "trainer and workers meet",
        "stateless_init_torch_distributed_process_group"
        "(host, port, rank, world_size, backend, group_name, return_store, listen_socket, timeout)",
        only_for=SERVER_MODE,
    ),
    *hooks(
        "distributed.utils",
        "trainer and engines meet",
        "StatelessProcessGroup.create"
        "(host, port, rank, world_size, data_expiration_seconds, store_timeout, listen_socket)",
        "StatelessProcessGroup.barrier(self, timeout)",
        only_for=BROADCAST,
    ),
    *hooks(
        "distributed.device_communicators.pynccl",
        "the trainer sends",
        "PyNcclCommunicator.__init__(self, group, device, library_path)",
        "PyNcclCommunicator.broadcast(self, tensor, src, stream)",
        "PyNcclCommunicator.destroy(self)",
        only_for=BROADCAST,
    ),
)
