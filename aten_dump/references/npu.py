"""The fused ops of NPUs, as torch_npu has them: what computes each, and its schema, to run it without torch_npu."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from . import attention, experts, gradients, norms, pointwise
from .fused_op import References

_ATTENTION: Final[dict[str, Callable[..., Any]]] = {
    "npu_fusion_attention": attention.attention,
    "npu_fusion_attention_v2": attention.attention,
    "npu_fusion_attention_v3": attention.attention_v3,
    "npu_fusion_attention_grad": attention.attention_grad,
    "npu_fusion_attention_grad_v2": attention.attention_grad_v2,
    "npu_fusion_attention_grad_v3": attention.attention_grad,
}
_EXPERTS: Final[dict[str, Callable[..., Any]]] = {
    "npu_grouped_matmul": experts.grouped_matmul,
    "npu_grouped_matmul.List": experts.grouped_matmul,
    "npu_moe_token_permute": experts.permute,
    "npu_moe_token_permute_grad": experts.permute_grad,
    "npu_moe_token_permute_grad_v2": experts.permute_grad_v2,
    "npu_moe_token_unpermute": experts.unpermute,
    "_npu_moe_token_unpermute": experts.unpermute_and_kept,
    "npu_moe_token_unpermute_grad": experts.unpermute_grad,
    "npu_moe_token_unpermute_grad_v2": experts.unpermute_grad_v2,
    "npu_moe_gating_top_k_softmax": experts.gating_top_k_softmax,
    "npu_moe_init_routing": experts.init_routing,
    "npu_moe_compute_expert_tokens": experts.compute_expert_tokens,
    "npu_moe_finalize_routing": experts.finalize_routing,
}
_NORMS: Final[dict[str, Callable[..., Any]]] = {
    "npu_rms_norm": norms.rms_norm,
    "npu_rms_norm_backward": norms.rms_norm_backward,
    "npu_add_rms_norm": norms.add_rms_norm,
    "npu_layer_norm_eval": norms.layer_norm,
    "npu_layernorm_grad": norms.layer_norm_grad,
}
_POINTWISE: Final[dict[str, Callable[..., Any]]] = {
    "npu_swiglu": pointwise.swiglu,
    "npu_swiglu_backward": pointwise.swiglu_backward,
    "npu_gelu": pointwise.gelu,
    "npu_gelu_backward": pointwise.gelu_backward,
    "fast_gelu": pointwise.fast_gelu,
    "npu_fast_gelu": pointwise.fast_gelu,
    "npu_fast_gelu_backward": pointwise.fast_gelu_backward,
    "npu_silu": pointwise.silu,
    "npu_silu_": pointwise.silu_,
    "npu_silu_backward": pointwise.silu_backward,
    "npu_mish": pointwise.mish,
    "npu_mish_backward": pointwise.mish_backward,
    "npu_rotary_mul": pointwise.rotary_mul,
    "npu_rotary_mul_backward": pointwise.rotary_mul_backward,
    "npu_apply_rotary_pos_emb": pointwise.apply_rotary_pos_emb,
    "npu_dropout_backward": pointwise.dropped,
    "npu_dropout_do_mask": pointwise.dropped_and_mask,
    "npu_format_cast": pointwise.format_cast,
    "npu_format_cast.Tensor": pointwise.format_cast,
    "_npu_format_cast": pointwise.format_cast,
    "npu_dtype_cast": pointwise.dtype_cast,
    "_npu_dtype_cast": pointwise.dtype_cast,
    "npu_dtype_cast_backward": pointwise.dtype_cast,
    "_npu_dtype_cast_backward": pointwise.dtype_cast,
}
_GRADIENTS: Final[dict[str, Callable[..., Any]]] = {
    "npu_gather_backward": gradients.gather_backward,
    "npu_binary_cross_entropy_with_logits_backward": gradients.binary_cross_entropy_backward,
    "l1_loss_backward": gradients.l1_loss_backward,
    "kl_div_backward": gradients.kl_div_backward,
    "repeat_interleave_backward_int": gradients.repeat_interleave_backward_int,
    "repeat_interleave_backward_tensor": gradients.repeat_interleave_backward_tensor,
    "npu_apply_adam_w.out": gradients.apply_adam_w,
}
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
REFERENCES: Final = References(
    {
        f"npu::{name}": reference
        for table in (_ATTENTION, _EXPERTS, _NORMS, _POINTWISE, _GRADIENTS)
        for name, reference in table.items()
    },
    tuple(f"npu::{text}" for text in _SCHEMAS.strip().replace("\n    ", " ").splitlines()),
)
