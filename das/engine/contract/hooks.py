"""Names of vLLM that every engine of das relies on: each one that das replaces, calls or reads, and its parameters.

feature_hooks.py has those of single features. das uses these names in das/engine/patches/, das/engine/runners/,
das/engine/worker.py and das/verify/.
das/engine/contract/hook_check.py compares all hooks with the sources of a vLLM.
"""

from das.engine.contract.hook import hooks

EVERY_ENGINE = (
    # The front end.
    *hooks(
        "v1.engine.input_processor",
        "refuses requests that the sampler cannot answer, accepts min_p and logit_bias with drafts",
        "InputProcessor.__init__(self, vllm_config)",
        "InputProcessor._validate_params(self, params, supported_tasks)",
        "InputProcessor.speculative_config",
    ),
    *hooks("exceptions", "how a request is refused", "VLLMValidationError.__init__(self, message)"),
    *hooks(
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
    *hooks("config.parallel", "engines ask for das by their worker class", "ParallelConfig.worker_cls"),
    *hooks("config.parallel", "part of the seed of a request without one", "ParallelConfig.data_parallel_index"),
    *hooks("config.vllm", "the settings of das", "VllmConfig.additional_config"),
    *hooks("config.vllm", "the second model runner has a sampler of its own", "VllmConfig.use_v2_model_runner"),
    # The worker.
    *hooks(
        "v1.worker.gpu_worker",
        "the worker that das subclasses (GPU)",
        "Worker.init_device(self)",
        "Worker.use_v2_model_runner",
    ),
    *hooks("v1.worker.cpu_worker", "the worker that das subclasses (CPU)", "CPUWorker.init_device(self)"),
    *hooks("v1.worker.gpu_worker", "attention is hooked when the KV cache is made", "Worker.initialize_from_config"),
    *hooks("v1.worker.gpu_worker", "a pass begins", "Worker.execute_model"),
    *hooks(
        "v1.worker.gpu_worker",
        "new weights arrive",
        "Worker.load_model",
        "Worker.reload_weights",
        "Worker.update_weights",
        "Worker.finish_weight_update",
    ),
    *hooks("v1.core.block_pool", "the prefix cache is seen to be empty after a sync", "BlockPool.blocks"),
    *hooks("v1.core.kv_cache_manager", "the same", "KVCacheManager.block_pool"),
    # The model runner.
    *hooks(
        "v1.worker.gpu_model_runner",
        "verification by keyed noise",
        "GPUModelRunner._sample(self, logits, spec_decode_metadata)",
        "GPUModelRunner.input_batch",
        "GPUModelRunner.requests",
        "GPUModelRunner.discard_request_mask",
        "GPUModelRunner.vllm_config",
        "GPUModelRunner.model_config",
    ),
    *hooks(
        "v1.worker.gpu_model_runner",
        "a pass is counted when its tokens are on the host",
        "GPUModelRunner._bookkeeping_sync",
    ),
    *hooks(
        "v1.worker.gpu_model_runner",
        "the memory of a pass with drafts is profiled (GPU)",
        "GPUModelRunner.profile_run(self)",
        "GPUModelRunner.max_num_tokens",
        "GPUModelRunner.max_num_reqs",
        "GPUModelRunner.num_spec_tokens",
        "GPUModelRunner.device",
    ),
    *hooks(
        "v1.worker.gpu_model_runner",
        "graphs for passes in which nobody drafts (GPU)",
        "GPUModelRunner.uniform_decode_query_len",
        "GPUModelRunner.cudagraph_dispatcher",
    ),
    *hooks("v1.cudagraph_dispatcher", "the same", "CudagraphDispatcher.uniform_decode_query_len"),
    *hooks(
        "v1.worker.gpu_model_runner",
        "drafting with request ids",
        "GPUModelRunner.propose_draft_token_ids",
        "GPUModelRunner.drafter",
        "create_custom_proposer",
    ),
    *hooks(
        "v1.worker.gpu_model_runner",
        "drafts near max_model_len",
        "GPUModelRunner._input_fits_in_drafter(self, common_attn_metadata)",
    ),
    *hooks(
        "v1.worker.gpu_model_runner",
        "min_p and logit_bias with drafts",
        "build_logitsprocs(vllm_config, device, is_pin_memory, is_pooling_model, custom_logitsprocs)",
    ),
    *hooks(
        "distributed.parallel_state",
        "one rank drafts for all",
        "get_tp_group()",
        "GroupCoordinator.is_first_rank",
        "GroupCoordinator.broadcast_object(self, obj, src)",
    ),
    *hooks("v1.worker.gpu_model_runner", "where the attention's builders are", "GPUModelRunner.attn_groups"),
    *hooks("v1.worker.gpu_model_runner", "the model whose weights are replaced", "GPUModelRunner.get_model(self)"),
    *hooks("v1.worker.utils", "where the attention's builders are", "AttentionGroup.metadata_builders"),
    # The batch, as the sampler reads it.
    *hooks(
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
    *hooks(
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
    *hooks(
        "v1.spec_decode.metadata",
        "the drafted tokens of a pass",
        "SpecDecodeMetadata.draft_token_ids",
        "SpecDecodeMetadata.num_draft_tokens",
    ),
    *hooks(
        "v1.outputs",
        "what the sampler returns",
        "SamplerOutput.sampled_token_ids",
        "SamplerOutput.logprobs_tensors",
        "LogprobsTensors.logprob_token_ids",
        "LogprobsTensors.logprobs",
        "LogprobsTensors.selected_token_ranks",
    ),
    *hooks(
        "v1.sample.logits_processor",
        "the processors of min_p, min_tokens and logit_bias",
        "BUILTIN_LOGITS_PROCESSORS",
        "LogitsProcessors",
    ),
    *hooks(
        "v1.sample.logits_processor.builtin",
        "their state, row by row",
        "MinPLogitsProcessor.min_p",
        "MinPLogitsProcessor.min_p_count",
        "LogitBiasLogitsProcessor.biases",
        "MinTokensLogitsProcessor.min_toks",
    ),
    *hooks(
        "v1.sample.ops.topk_topp_sampler",
        "top-k and top-p by sorting",
        "apply_top_k_top_p_pytorch(logits, k, p)",
    ),
    *hooks(
        "v1.sample.ops.penalties",
        "penalties",
        "apply_all_penalties(logits, prompt_token_ids, presence_penalties, frequency_penalties, repetition_penalties,"
        " output_token_ids)",
    ),
    *hooks("v1.sample.ops.bad_words", "bad words", "apply_bad_words(logits, bad_words_token_ids, past_tokens_ids)"),
    # The CPU's kernels.
    *hooks(
        "model_executor.layers.utils",
        "packed weights that can be packed again (CPU)",
        "dispatch_cpu_unquantized_gemm(layer, remove_weight)",
    ),
    *hooks(
        "model_executor.layers.quantization.base_config",
        "layers that whoever loaded weights lets vLLM process again (CPU)",
        "QuantizeMethodBase.process_weights_after_loading(self, layer)",
    ),
    *hooks(
        "distributed.device_communicators.cpu_communicator",
        "ranks that torchrun launched meet in shared memory of their own (CPU)",
        "_CPUSHMDistributed.make_group_name(communicator)",
    ),
    *hooks(
        "v1.attention.backends.cpu_attn",
        "attention whose bits do not depend on the batch (CPU)",
        "CPUAttentionMetadataBuilder.build(self, common_prefix_len, common_attn_metadata, fast_build)",
        "envs",
    ),
    *hooks(
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
    *hooks("config.compilation", "norms that are batch-invariant (GPU)", "CompilationConfig.custom_ops"),
)
