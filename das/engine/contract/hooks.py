"""Names of vLLM that das relies on: each one that it replaces, calls or reads, and its parameters.

das uses them in das/engine/patches/, das/engine/runner/, das/engine/drafters/, das/engine/worker.py, das/verify/ and
das/weights/. das/engine/contract/hook_check.py compares them with the sources of a vLLM.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

# A line without indent has a module of vLLM, and what das wants of it. The indented lines below it have names:
# functions, or a class and its members. A function has the parameters that das passes, where they matter. A line that
# ends with a comma continues on the next line. Only the feature in brackets needs the names that follow [a feature].
TABLE = """
# The front end.
v1.engine.input_processor: refuses requests that the sampler cannot answer, accepts min_p and logit_bias with drafts
    InputProcessor: __init__(self, vllm_config), _validate_params(self, params, supported_tasks), speculative_config
v1.engine.input_processor: histories are parted as the prefix cache is
    InputProcessor: process_inputs
v1.engine: the same
    EngineCoreRequest: cache_salt, sampling_params
exceptions: how a request is refused
    VLLMValidationError: __init__(self, message)
sampling_params: what a request asks for
    SamplingParams: seed, extra_args, max_tokens, stop_token_ids, all_stop_token_ids, ignore_eos, allowed_token_ids,
        logprob_token_ids, thinking_token_budget
# The engine's configuration.
config.parallel: engines ask for das by their worker class
    ParallelConfig: worker_cls
config.parallel: part of the seed of a request without one
    ParallelConfig: data_parallel_index
config.vllm: the settings of das
    VllmConfig: additional_config
config.vllm: the second model runner has a sampler of its own
    VllmConfig: use_v2_model_runner
# The worker.
v1.worker.gpu_worker: the worker that das subclasses (GPU)
    Worker: init_device(self), use_v2_model_runner
v1.worker.cpu_worker: the worker that das subclasses (CPU)
    CPUWorker: init_device(self)
v1.worker.gpu_worker: attention is hooked when the KV cache is made
    Worker: initialize_from_config
v1.worker.gpu_worker: a pass begins
    Worker: execute_model
v1.worker.gpu_worker: new weights arrive
    Worker: load_model, reload_weights, update_weights, finish_weight_update
v1.core.block_pool: the prefix cache is seen to be empty after a sync
    BlockPool: blocks
v1.core.kv_cache_manager: the same
    KVCacheManager: block_pool
# The model runner.
v1.worker.gpu_model_runner: verification by keyed noise
    GPUModelRunner: _sample(self, logits, spec_decode_metadata), input_batch, requests, discard_request_mask,
        vllm_config, model_config
v1.worker.gpu_model_runner: a pass is counted when its tokens are on the host
    GPUModelRunner: _bookkeeping_sync
v1.worker.gpu_model_runner: the memory of a pass with drafts is profiled (GPU)
    GPUModelRunner: profile_run(self), max_num_tokens, max_num_reqs, num_spec_tokens, device
v1.worker.gpu_model_runner: graphs for passes in which nobody drafts (GPU)
    GPUModelRunner: uniform_decode_query_len, cudagraph_dispatcher
v1.cudagraph_dispatcher: the same
    CudagraphDispatcher: uniform_decode_query_len
v1.worker.gpu_model_runner: drafting with request ids
    GPUModelRunner: propose_draft_token_ids, drafter
    create_custom_proposer
v1.worker.gpu_model_runner: drafts near max_model_len
    GPUModelRunner: _input_fits_in_drafter(self, common_attn_metadata)
v1.worker.gpu_model_runner: min_p and logit_bias with drafts
    build_logitsprocs(vllm_config, device, is_pin_memory, is_pooling_model, custom_logitsprocs)
distributed.parallel_state: one rank drafts for all
    get_tp_group()
    GroupCoordinator: is_first_rank, broadcast_object(self, obj, src)
v1.worker.gpu_model_runner: where the attention's builders are
    GPUModelRunner: attn_groups
v1.worker.gpu_model_runner: the model whose weights are replaced
    GPUModelRunner: get_model(self)
v1.worker.utils: where the attention's builders are
    AttentionGroup: metadata_builders
# The batch, as the sampler reads it.
v1.worker.gpu_input_batch: the requests of a pass
    InputBatch: req_ids, num_reqs, generators, sampling_metadata, temperature_cpu, num_tokens_no_spec,
        num_prompt_tokens, update_async_output_token_ids(self)
    CachedRequestState: prompt_token_ids, output_token_ids, sampling_params, mm_features
multimodal.inputs: two images with the same text are two problems
    MultiModalFeatureSpec: identifier
v1.sample.metadata: the sampling parameters of a pass
    SamplingMetadata: all_greedy, all_random, top_p, top_k, max_num_logprobs, logprob_token_ids, no_penalties,
        prompt_token_ids, frequency_penalties, presence_penalties, repetition_penalties, output_token_ids,
        allowed_token_ids_mask, bad_words_token_ids, logitsprocs, thinking_budget_state_holder
v1.spec_decode.metadata: the drafted tokens of a pass
    SpecDecodeMetadata: draft_token_ids, num_draft_tokens
v1.outputs: what the sampler returns
    SamplerOutput: sampled_token_ids, logprobs_tensors
    LogprobsTensors: logprob_token_ids, logprobs, selected_token_ranks
v1.sample.logits_processor: the processors of min_p, min_tokens and logit_bias
    BUILTIN_LOGITS_PROCESSORS
    LogitsProcessors
v1.sample.logits_processor.builtin: their state, row by row
    MinPLogitsProcessor: min_p, min_p_count
    LogitBiasLogitsProcessor: biases
    MinTokensLogitsProcessor: min_toks
v1.sample.ops.topk_topp_sampler: top-k and top-p by sorting
    apply_top_k_top_p_pytorch(logits, k, p)
v1.sample.ops.penalties: penalties
    apply_all_penalties(logits, prompt_token_ids, presence_penalties, frequency_penalties, repetition_penalties,
        output_token_ids)
v1.sample.ops.bad_words: bad words
    apply_bad_words(logits, bad_words_token_ids, past_tokens_ids)
# The CPU's kernels.
model_executor.layers.utils: packed weights that can be packed again (CPU)
    dispatch_cpu_unquantized_gemm(layer, remove_weight)
model_executor.layers.quantization.base_config: layers that whoever loaded weights lets vLLM process again (CPU)
    QuantizeMethodBase: process_weights_after_loading(self, layer)
distributed.device_communicators.cpu_communicator: ranks that torchrun launched meet in shared memory of their own (CPU)
    _CPUSHMDistributed: make_group_name(communicator)
v1.attention.backends.cpu_attn: attention whose bits do not depend on the batch (CPU)
    CPUAttentionMetadataBuilder: build(self, common_prefix_len, common_attn_metadata, fast_build)
    envs
v1.attention.backend: queries in pieces (CPU)
    CommonAttentionMetadata: num_reqs, max_query_len, query_start_loc, seq_lens, block_table_tensor, causal
# A GPU's kernels.
config.compilation: norms that are batch-invariant (GPU)
    CompilationConfig: custom_ops
model_executor.layers.layernorm: the norm after a residual add up to 0.26 (GPU)
    rms_norm_batch_invariant
v1.attention.backends.registry: attention with heads below 128 (GPU)
    AttentionBackendEnum: TRITON_ATTN
config.attention: the same
    AttentionConfig: backend

[tuned batch-invariant kernels of 7B and 8B models]
model_executor.determinism.batch_invariant_configs: tiles for more shapes (GPU)
    _BATCH_INVARIANT_MATMUL_TUNED_CONFIGS

[drafts that branch]
v1.worker.gpu_model_runner: rows of branches, their positions and their places in the KV cache
    GPUModelRunner: _prepare_inputs(self, scheduler_output, num_scheduled_tokens), positions, kv_caches,
        kv_cache_config, _kernel_block_sizes, compilation_config, parallel_config, shared_kv_cache_layers, uses_mrope
v1.core.sched.output: which drafts the scheduler found room for
    SchedulerOutput: scheduled_spec_decode_tokens
v1.worker.gpu_input_batch: where the requests lie in the KV cache
    InputBatch: num_computed_tokens_cpu, block_table
v1.worker.block_table: the same
    BlockTable: block_table, slot_mapping
v1.kv_cache_interface: blocks that the scheduler does not know of
    FullAttentionSpec
    KVCacheConfig: num_blocks, kv_cache_tensors, kv_cache_groups
    KVCacheTensor: size, layer_stride, block_stride
v1.worker.utils: blocks are copied
    copy_kv_cache_blocks_inplace(kv_caches, num_blocks, kv_cache_block_copies)
v1.attention.backend: every run of nodes is a request of its own
    CommonAttentionMetadata: num_actual_tokens, query_start_loc_cpu, seq_lens_cpu_upper_bound, is_prefilling
v1.attention.backends.cpu_attn: keys and values are written for branches too
    CPUAttentionBackendImpl: forward(self, layer, query, key, value, kv_cache, attn_metadata, output),
        do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping)
v1.attention.backends.flash_attn: keys and values are written for branches too
    FlashAttentionImpl: forward(self, layer, query, key, value, kv_cache, attn_metadata, output),
        do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping)
v1.cudagraph_dispatcher: no full graph where drafts branch
    CudagraphDispatcher: dispatch
sampling_params: requests with a grammar draft chains
    SamplingParams: structured_outputs

[coupled drafts]
v1.spec_decode.llm_base_proposer: drafters that run a model draw with the verifier's noise
    SpecDecodeBaseProposer: _sample_draft_tokens(self, hidden_states, sampling_metadata),
        _greedy_sample(self, hidden_states), propose, model, num_speculative_tokens, parallel_drafting

[EAGLE-3 heads]
config.speculative: where the head lies
    SpeculativeConfig: model, method
model_executor.models.llama_eagle3: new weights of the head; whether vLLM shares its lm_head
    Eagle3LlamaForCausalLM: load_weights(self, weights), lm_head

[self-drafts]
forward_context: passes of the policy's model that draft
    set_forward_context(attn_metadata, vllm_config, num_tokens)
v1.attention.backend: the same
    CommonAttentionMetadata: max_seq_len, slot_mapping
v1.worker.utils: the same
    AttentionGroup: layer_names, get_metadata_builder(self)
model_executor.layers.linear: the layers that are quantized for them
    LinearBase
_custom_ops: how they are multiplied (CPU)
    create_onednn_scaled_mm(weight, weight_scales, output_type, dynamic_quant, use_azp, primitive_cache_size)
    onednn_scaled_int8_quant(input, scale, azp, symmetric)
    onednn_scaled_mm(dnnl_handler, x, output, input_scale, input_zp, input_zp_adj, bias)
_custom_ops: the same (GPU)
    scaled_int8_quant(input)
    cutlass_scaled_mm(a, b, scale_a, scale_b, out_dtype, bias)
model_executor.kernels.linear: the same (GPU)
    choose_mp_linear_kernel(config)
model_executor.kernels.linear.mixed_precision.MPLinearKernel: the same (GPU)
    MPLinearLayerConfig: full_weight_shape, zero_points
    MPLinearKernel: process_weights_after_loading(self, layer), apply_weights(self, layer, x, bias)
model_executor.parameter: the same (GPU)
    GroupQuantScaleParameter
    PackedvLLMParameter

[the second model runner]
config.vllm: engines say themselves which runner they run on
    VllmConfig: use_v2_model_runner, _validate_v2_model_runner(self), _get_v2_model_runner_unsupported_features(self),
        __post_init__(self)
v1.worker.gpu.model_runner: a drafter that is no model
    init_speculator
v1.worker.gpu.model_runner: sampling, drafting, counting
    GPUModelRunner: load_model, add_requests(self, scheduler_output), finish_requests(self, scheduler_output),
        sample(self, hidden_states, input_batch, grammar_output), execute_model(self, scheduler_output), profile_run,
        sampler, rejection_sampler, speculator, draft_tokens_handler, req_states, max_num_reqs, max_num_tokens,
        num_speculative_steps, vocab_size, model_config, lora_state
v1.worker.gpu.model_runner: drafts that branch
    GPUModelRunner: prepare_inputs, prepare_attn(self, input_batch), block_tables, kernel_block_sizes, attn_groups,
        kv_caches, kv_cache_config, compilation_config, parallel_config
v1.worker.gpu.model_runner: full graphs take drafts of any length (GPU)
    ModelCudaGraphManager
    GPUModelRunner: initialize_kv_cache, cudagraph_manager, decode_query_len
v1.worker.gpu.cudagraph_utils: the same
    CudaGraphManager: __init__(self, vllm_config, device, cudagraph_mode, decode_query_len, lora_capture_cases,
        varlen_decode), dispatch(self, num_reqs, num_tokens, uniform_token_count, num_active_loras)
    BatchExecutionDescriptor: num_reqs
v1.worker.gpu.attn_utils: the same
    get_varlen_cudagraph_unsupported_backend(attn_groups, vllm_config, max_query_len)
v1.worker.gpu.lora_utils: the rows of drafts take their requests' adapters
    LoraState: make_lora_inputs(self, req_ids, idx_mapping, num_scheduled_tokens)
v1.worker.gpu.spec_decode.rejection_sampler: verification, in pieces and with log-probs
    RejectionSampler: __init__(self, sampler, spec_config, device), __call__(self, logits, input_batch),
        _verify(self, logits, draft_logits, draft_sampled, pos, cu_num_logits, idx_mapping, idx_mapping_np,
        expanded_idx_mapping, expanded_local_pos, seq_lens_upper_bound_np, verify_draft_sampled),
        num_speculative_steps
v1.worker.gpu.sample.sampler: sampling parameters, without the draw
    Sampler: sample(self, logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, input_ids,
        expanded_local_pos, seq_lens_upper_bound_np, return_logprobs),
        apply_sampling_params(self, logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, input_ids,
        expanded_local_pos, seq_lens_upper_bound_np, skip_top_k_top_p), sampling_states, logprobs_mode
v1.worker.gpu.sample.states: seeds, temperatures, top-k and top-p of all requests
    SamplingStates: add_request(self, req_idx, sampling_params),
        get_top_k_top_p(self, expanded_idx_mapping, idx_mapping_np), seeds, temperature
v1.worker.gpu.states: where each request lies in vLLM's arrays
    RequestState: req_id_to_index, prompt_len, all_token_ids
v1.worker.gpu.input_batch: the requests of a pass
    InputBatch: req_ids, idx_mapping, idx_mapping_np, num_draft_tokens_per_req, num_computed_tokens_np,
        num_scheduled_tokens, prefill_len_np, positions, num_reqs, query_start_loc_np
v1.worker.gpu.sample.output: what the sampler returns
    SamplerOutput: sampled_token_ids
v1.worker.gpu.spec_decode.speculator: what drafts
    BaseSpeculator: propose, init_cudagraph_manager(self, cudagraph_mode), capture(self)
    DraftModelSpeculator: sample_draft, compute_draft_logits(self, hidden_states, spec_step_idx), model, attn_groups
v1.worker.gpu.spec_decode.utils: true lengths of drafts for the scheduler
    DraftTokensHandler: set_draft_tokens(self, input_batch, draft_tokens), get_draft_tokens(self)
v1.outputs: the same
    DraftTokenIds
v1.core.sched.output: which requests come and go
    SchedulerOutput: finished_req_ids, preempted_req_ids, scheduled_new_reqs, scheduled_spec_decode_tokens,
        num_scheduled_tokens, total_num_scheduled_tokens
    NewRequestData: req_id, prompt_token_ids, prefill_token_ids, prompt_len, sampling_params, mm_features

[the second model runner on a CPU]
v1.worker.cpu.model_runner: the runner itself
    CPUModelRunner
v1.worker.gpu.buffer_utils: kernels, which functions of the host replace
    _apply_write_kernel
v1.worker.gpu.block_table: the same
    _gather_block_tables_kernel, _compute_slot_mappings_kernel
v1.worker.gpu.input_batch: the same
    _prepare_prefill_inputs_kernel, _prepare_pos_seq_lens_kernel, _combine_sampled_and_draft_tokens_kernel,
        _get_num_sampled_and_rejected_kernel, _post_update_kernel, _expand_idx_mapping_kernel
v1.worker.gpu.spec_decode.rejection_sampler: the same
    _gather_draft_sampled_kernel, _flatten_sampled_kernel
v1.worker.gpu.spec_decode.standalone_ar.speculator: the same
    _prepare_prefill_inputs_kernel
v1.worker.gpu.spec_decode.target_dependent_ar.speculator: the same
    _prepare_prefill_inputs_kernel, _prepare_decode_inputs_kernel, _update_draft_inputs_kernel
v1.worker.gpu.sample.gumbel: the same
    _temperature_kernel
v1.worker.gpu.sample.min_p: the same
    _min_p_kernel
v1.worker.gpu.sample.logit_bias: the same
    _bias_kernel
v1.worker.gpu.sample.bad_words: the same
    _bad_words_kernel
v1.worker.gpu.sample.penalties: the same
    _bincount_kernel, _penalties_kernel
v1.worker.gpu.structured_outputs: the same
    _apply_grammar_bitmask_kernel
v1.worker.gpu.sample.logprob: the same
    _ranks_kernel, _topk_log_softmax_kernel
v1.worker.gpu.sample.prompt_logprob: the same
    _prompt_logprobs_token_ids_kernel

[policies with experts on a CPU]
model_executor.layers.fused_moe.experts.cpu_moe: packed weights that can be packed again (CPU)
    CPUUnquantizedExperts: process_weights_after_loading(self, layer), apply

[LoRA adapters on a CPU]
lora.punica_wrapper.punica_cpu: a request without an adapter gets none (CPU)
    PunicaWrapperCPU: add_lora_linear, add_lora_embedding, add_lora_logits
lora.punica_wrapper.punica_base: the same
    PunicaWrapperBase: token_lora_indices, sampler_indices

[server mode without a GPU]
config.vllm: the backend that an engine asks for
    VllmConfig: weight_transfer_config
distributed.weight_transfer.factory: a backend without CUDA is added
    WeightTransferEngineFactory: _registry, register_engine(cls, name, module_path_or_cls, class_name)
distributed.weight_transfer.base: what a backend is
    WeightTransferInitInfo
    WeightTransferUpdateInfo
    WeightTransferEngine: init_transfer_engine(self, init_info), start_weight_update, update_weights,
        parse_update_info, receive_weights, finish_weight_update, shutdown(self)
distributed.utils: trainer and workers meet
    stateless_init_torch_distributed_process_group(host, port, rank, world_size, backend, group_name, return_store,
        listen_socket, timeout)

[weights that are broadcast to a cluster of GPUs]
distributed.utils: trainer and engines meet
    StatelessProcessGroup: barrier(self, timeout),
        create(host, port, rank, world_size, data_expiration_seconds, store_timeout, listen_socket)
distributed.device_communicators.pynccl: the trainer sends
    PyNcclCommunicator: __init__(self, group, device, library_path), broadcast(self, tensor, src, stream),
        destroy(self)
"""


@dataclass(frozen=True)
class Hook:
    """A name in a module of vLLM.

    name: dotted, such as Class.method or Class.attribute. parameters: a function's first parameters; further ones must
    be optional. None if the name is no function, or if its parameters do not matter. only_for: the only feature that
    needs the name; a vLLM without it lacks this feature and is not refused. None: every engine of das needs it.
    """

    module: str
    name: str
    why: str
    parameters: tuple[str, ...] | None = None
    only_for: str | None = None

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def _read(table: str) -> Iterator[Hook]:
    """Yields the hooks of a table in the form of TABLE, in the table's order."""
    module = why = ""
    feature = None
    for line in re.sub(r",\n +", ", ", table).splitlines():
        if line.startswith("["):
            feature = line.strip("[]")
        elif line.startswith("    "):
            first, colon, members = line.strip().partition(": ")
            for name, parameters in re.findall(r"(\w+)(\(.*?\))?", members if colon else first):
                dotted = f"{first}.{name}" if colon else name
                taken = tuple(re.findall(r"\w+", parameters)) if parameters else None
                yield Hook(f"vllm.{module}", dotted, why, taken, feature)
        elif line and not line.startswith("#"):
            module, _, why = line.partition(": ")


HOOKS = tuple(_read(TABLE))
