"""The schemas of the fused ops that have a reference, as torch_npu and FSDP2 have them, to run them without these."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch

from ...torch_names import parse_schema

_SCHEMAS: Final = """
npu_fusion_attention(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, Tensor? pse=None,
    Tensor? padding_mask=None, Tensor? atten_mask=None, float scale=1., float keep_prob=1., int
    pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0, int[]? prefix=None, int[]?
    actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, bool gen_mask_parallel=True, bool
    sync=False, str softmax_layout="", Tensor? sink=None, Tensor? dropout_mask=None, int seed=0, int offset=0) ->
    (Tensor, Tensor, Tensor, Tensor, int, int, int)
npu_fusion_attention_v2(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, *, Tensor?
    pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, Tensor? query_rope=None, Tensor? key_rope=None,
    float scale=1., float keep_prob=1., int pre_tokens=2147483647, int next_tokens=2147483647, int inner_precise=0,
    int[]? prefix=None, int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, bool
    gen_mask_parallel=True, bool sync=False, int pse_type=1, int[]? q_start_idx=None, int[]? kv_start_idx=None, str
    softmax_layout="", Tensor? sink=None, Tensor? dropout_mask=None, int seed=0, int offset=0) -> (Tensor, Tensor,
    Tensor, Tensor, int, int, int)
npu_fusion_attention_v3(Tensor query, Tensor key, Tensor value, int head_num, str input_layout, Tensor?
    pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, float scale=1., float keep_prob=1., int
    pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0, SymInt[]? prefix=None, Tensor?
    actual_seq_qlen=None, Tensor? actual_seq_kvlen=None, int sparse_mode=0, bool gen_mask_parallel=True, bool
    sync=False, str softmax_layout="", Tensor? sink=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)
npu_fusion_attention_grad(Tensor query, Tensor key, Tensor value, Tensor dy, int head_num, str input_layout, *,
    Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, Tensor? softmax_max=None, Tensor?
    softmax_sum=None, Tensor? softmax_in=None, Tensor? attention_in=None, float scale_value=1., float keep_prob=1.,
    int pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0, int seed=0, int offset=0, int
    numels=0, int[]? prefix=None, int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0, bool
    gen_mask_parallel=True, bool sync=False, str softmax_layout="", Tensor? sink=None) -> (Tensor, Tensor, Tensor,
    Tensor, Tensor)
npu_fusion_attention_grad_v2(Tensor query, Tensor key, Tensor value, Tensor dy, int head_num, str input_layout,
    *, Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, Tensor? softmax_max=None, Tensor?
    softmax_sum=None, Tensor? softmax_in=None, Tensor? attention_in=None, Tensor? query_rope=None, Tensor?
    key_rope=None, float scale_value=1., float keep_prob=1., int pre_tokens=2147483647, int next_tokens=2147483647,
    int inner_precise=0, int seed=0, int offset=0, int numels=0, int[]? prefix=None, int[]? actual_seq_qlen=None,
    int[]? actual_seq_kvlen=None, int sparse_mode=0, bool gen_mask_parallel=True, bool sync=False, int pse_type=1,
    int[]? q_start_idx=None, int[]? kv_start_idx=None, str softmax_layout="", Tensor? sink=None) -> (Tensor, Tensor,
    Tensor, Tensor, Tensor, Tensor, Tensor)
npu_fusion_attention_grad_v3(Tensor query, Tensor key, Tensor value, Tensor dy, int head_num, str input_layout,
    *, Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, Tensor? softmax_max=None, Tensor?
    softmax_sum=None, Tensor? softmax_in=None, Tensor? attention_in=None, float scale_value=1., float keep_prob=1.,
    int pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0, Tensor? seed=None, Tensor?
    offset=None, SymInt[]? prefix=None, Tensor? actual_seq_qlen=None, Tensor? actual_seq_kvlen=None, int
    sparse_mode=0, bool gen_mask_parallel=True, bool sync=False, str softmax_layout="", Tensor? sink=None) ->
    (Tensor, Tensor, Tensor, Tensor, Tensor)
npu_grouped_matmul(Tensor[] x, Tensor[] weight, *, Tensor[]? bias=None, Tensor[]? scale=None, Tensor[]?
    offset=None, Tensor[]? antiquant_scale=None, Tensor[]? antiquant_offset=None, Tensor[]? per_token_scale=None,
    Tensor? group_list=None, Tensor[]? activation_input=None, Tensor[]? activation_quant_scale=None, Tensor[]?
    activation_quant_offset=None, int? split_item=0, int? group_type=None, int? group_list_type=0, int? act_type=0,
    int[]? tuning_config=None, int? output_dtype=None, int? x_dtype=None, int? weight_dtype=None, int?
    scale_dtype=None, int? per_token_scale_dtype=None) -> Tensor[]
npu_grouped_matmul.List(Tensor[] x, Tensor[] weight, *, Tensor[]? bias=None, Tensor[]? scale=None, Tensor[]?
    offset=None, Tensor[]? antiquant_scale=None, Tensor[]? antiquant_offset=None, Tensor[]? per_token_scale=None,
    int[]? group_list=None, Tensor[]? activation_input=None, Tensor[]? activation_quant_scale=None, Tensor[]?
    activation_quant_offset=None, int? split_item=0, int? group_type=None, int? group_list_type=0, int? act_type=0,
    ScalarType? output_dtype=None) -> Tensor[]
npu_moe_token_permute(Tensor tokens, Tensor indices, int? num_out_tokens=None, bool padded_mode=False) ->
    (Tensor, Tensor)
npu_moe_token_permute_grad(Tensor tokens, Tensor grad_permuted_tokens, Tensor indices, Tensor sorted_indices,
    bool padded_mode=False) -> Tensor
npu_moe_token_permute_grad_v2(Tensor grad_permuted_tokens, Tensor sorted_indices, SymInt tokens_size_0,
    ScalarType tokens_dtype, SymInt num_topK, bool padded_mode=False) -> Tensor
npu_moe_token_unpermute(Tensor permuted_tokens, Tensor sorted_indices, Tensor? probs=None, bool
    padded_mode=False, int[]? restore_shape=None) -> Tensor
_npu_moe_token_unpermute(Tensor permuted_tokens, Tensor sorted_indices, Tensor? probs=None, bool
    padded_mode=False, int[]? restore_shape=None) -> (Tensor unpermuted_tokens, Tensor permuted_tokens_for_backward)
npu_moe_token_unpermute_grad(Tensor permuted_tokens, Tensor grad_unpermuted_tokens, Tensor sorted_indices,
    Tensor? probs=None, bool padded_mode=False, int[]? restore_shape=None) -> (Tensor, Tensor)
npu_moe_token_unpermute_grad_v2(Tensor grad_unpermuted_tokens, Tensor sorted_indices, SymInt
    permuted_tokens_size_0, ScalarType permuted_tokens_dtype, Tensor? probs=None, bool padded_mode=False, int[]?
    restore_shape=None, Tensor? permuted_tokens=None) -> (Tensor, Tensor)
npu_moe_gating_top_k_softmax(Tensor x, Tensor? finished=None, int k=1) -> (Tensor, Tensor, Tensor)
npu_moe_init_routing(Tensor x, Tensor row_idx, Tensor expert_idx, int active_num) -> (Tensor, Tensor, Tensor)
npu_moe_compute_expert_tokens(Tensor sorted_expert_for_source_row, int num_expert) -> Tensor
npu_moe_finalize_routing(Tensor expanded_permuted_rows, Tensor? skip1, Tensor? skip2, Tensor? bias, Tensor?
    scales, Tensor expanded_src_to_dst_row, Tensor? export_for_source_row, int? drop_pad_mode=0, int? k=1) -> Tensor
npu_rms_norm(Tensor input, Tensor gamma, float epsilon=9.9999999999999995e-07) -> (Tensor, Tensor)
npu_rms_norm_backward(Tensor dy, Tensor input, Tensor gamma, Tensor rstd) -> (Tensor, Tensor)
npu_add_rms_norm(Tensor x1, Tensor x2, Tensor gamma, float epsilon=9.9999999999999995e-07) -> (Tensor, Tensor,
    Tensor)
npu_layer_norm_eval(Tensor input, int[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float
    eps=1.0000000000000001e-05) -> Tensor
npu_layernorm_grad(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor mean, Tensor rstd, Tensor?
    weight, Tensor? bias) -> (Tensor, Tensor, Tensor)
npu_swiglu(Tensor input, int dim=-1) -> Tensor
npu_swiglu_backward(Tensor grad_output, Tensor input, int dim=-1) -> Tensor
npu_gelu(Tensor input, *, str approximate="none") -> Tensor
npu_gelu_backward(Tensor grad_output, Tensor input, *, str approximate="none") -> Tensor
fast_gelu(Tensor input) -> Tensor
npu_fast_gelu(Tensor input) -> Tensor
npu_fast_gelu_backward(Tensor grad, Tensor input) -> Tensor
npu_silu(Tensor input) -> Tensor
npu_silu_(Tensor(a!) input) -> Tensor(a!)
npu_silu_backward(Tensor grad_output, Tensor x0, Tensor x1) -> Tensor
npu_mish(Tensor input) -> Tensor
npu_mish_backward(Tensor grad, Tensor input) -> Tensor
npu_rotary_mul(Tensor input, Tensor r1, Tensor r2, str rotary_mode="half", Tensor? rotate=None) -> Tensor
npu_rotary_mul_backward(Tensor grad, Tensor input, Tensor r1, Tensor r2, str rotary_mode="half") -> (Tensor,
    Tensor, Tensor)
npu_apply_rotary_pos_emb(Tensor query, Tensor key, Tensor cos, Tensor sin, str layout="BSND", str
    rotary_mode="half") -> (Tensor, Tensor)
npu_dropout_backward(Tensor grad_output, Tensor mask, float p) -> Tensor
npu_dropout_do_mask(Tensor input, Tensor mask, float p) -> (Tensor, Tensor)
npu_format_cast(Tensor input, int acl_format, *, int? customize_dtype=None, int? input_dtype=None) -> Tensor
npu_format_cast.Tensor(Tensor input, Tensor dst, *, int? customize_dtype=None, int? input_dtype=None) -> Tensor
_npu_format_cast(Tensor input, int acl_format) -> Tensor
npu_dtype_cast(Tensor input, int dtype, int? input_dtype=None) -> Tensor
_npu_dtype_cast(Tensor input, ScalarType dtype) -> Tensor
npu_dtype_cast_backward(Tensor grad, ScalarType dtype, int? grad_dtype=None, int? input_dtype=None) -> Tensor
_npu_dtype_cast_backward(Tensor grad, ScalarType dtype) -> Tensor
npu_gather_backward(Tensor grad, SymInt[] self_size, int dim, Tensor index, bool sparse_grad) -> Tensor
npu_binary_cross_entropy_with_logits_backward(Tensor grad_output, Tensor input, Tensor target, Tensor?
    weight_opt, Tensor? pos_weight_opt, int reduction) -> Tensor
l1_loss_backward(Tensor grad_output, Tensor input, Tensor target, int reduction) -> Tensor
kl_div_backward(Tensor grad_output, Tensor input, Tensor target, int reduction=1, *, bool log_target=False) ->
    Tensor
repeat_interleave_backward_int(Tensor grad, Tensor input, SymInt repeats, int? dim=None) -> Tensor
repeat_interleave_backward_tensor(Tensor grad, Tensor input, Tensor repeats, int? dim=None) -> Tensor
npu_apply_adam_w.out(Scalar beta1_power, Scalar beta2_power, Scalar lr, Scalar weight_decay, Scalar beta1,
    Scalar beta2, Scalar epsilon, Tensor grad, Tensor? max_grad_norm, bool? amsgrad, bool? maximize, *, Tensor[]
    out) -> (Tensor, Tensor, Tensor)
"""
_OF_FSDP: Final = (
    "fsdp::all_gather_copy_in(Tensor[] all_gather_inputs, Tensor all_gather_output, SymInt[] inp_split_sizes, "
    "SymInt all_gather_input_numel, SymInt rank) -> (Tensor, Tensor)",
    "fsdp::split_with_sizes_copy(Tensor all_gather_output, SymInt[] all_gather_input_split_sizes, int dim=0, *, "
    "Tensor(a!)[] out) -> ()",
    "fsdp::chunk_cat(Tensor[] tensors, int dim, int num_chunks, *, Tensor(a!) out) -> ()",
)


class FusedOp:
    """What is asked of an op, without the package that has it."""

    tags: tuple[torch.Tag, ...] = ()

    def __init__(self, schema: str) -> None:
        self._schema = parse_schema(schema)

    def name(self) -> str:
        """Return its name, as torch writes those of ops."""
        schema = self._schema
        return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


@lru_cache(maxsize=1)
def fused_ops() -> dict[str, FusedOp]:
    """Return the ops by name."""
    texts = _SCHEMAS.strip().replace("\n    ", " ").splitlines()
    found = [*(FusedOp(f"npu::{text}") for text in texts), *map(FusedOp, _OF_FSDP)]
    return {op.name(): op for op in found}
