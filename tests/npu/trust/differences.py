"""Ops of op_db that are not as on the CPU on the device, and why."""

from __future__ import annotations

from tests.sweep.exclusions import UNWRITTEN

_RANDOM = "draws from the device's generator"
_UNWRITTEN = "returns memory that nothing wrote"
_FACTORS = "factors are determined up to signs, and its start is drawn from the device's generator"

# Run, for errors, but not compared.
NOT_COMPARED: dict[str, str] = (
    dict.fromkeys(
        [
            "bernoulli",
            "cauchy",
            "exponential",
            "geometric",
            "log_normal",
            "multinomial",
            "normal",
            "normal.number_mean",
            "rand",
            "rand_like",
            "randint",
            "randint_like",
            "randn",
            "randn_like",
            "uniform",
            "nn.functional.alpha_dropout",
            "nn.functional.dropout",
            "nn.functional.dropout2d",
            "nn.functional.dropout3d",
            "nn.functional.feature_alpha_dropout",
            "nn.functional.fractional_max_pool2d",
            "nn.functional.fractional_max_pool3d",
            "nn.functional.rrelu",
            "nn.functional.scaled_dot_product_attention",
            "nn.functional.multi_head_attention_forward",
        ],
        _RANDOM,
    )
    | dict.fromkeys(UNWRITTEN, _UNWRITTEN)
    | dict.fromkeys(["svd_lowrank", "pca_lowrank"], _FACTORS)
)

# Of these the first result is compared: a device keeps the statistics of half precision in float32, and those of evaluation
# at all.
FIRST_RESULT_ONLY = frozenset(
    ["native_batch_norm", "native_layer_norm", "_native_batch_norm_legit", "_batch_norm_with_update"]
)

# Not run: torch_npu refuses them on a device too, or a copy of the arguments is another sample.
_FORMATS = "torch_npu: only torch.contiguous_format can be made"
REFUSED: dict[str, str] = dict.fromkeys(
    [
        "to",
        "bfloat16",
        "bool",
        "byte",
        "char",
        "double",
        "float",
        "half",
        "int",
        "long",
        "short",
        "cdouble",
        "cfloat",
        "chalf",
    ],
    _FORMATS,
) | {
    "to_sparse": "torch_npu has no sparse tensors without its own kernels",
    "sparse.mm.reduce": "a sparse CSR argument cannot be made on the device",
    "sparse.sampled_addmm": "a sparse CSR argument cannot be made on the device",
    "tensor_split": "wants its indices on the CPU",
    "as_strided.partial_views": "looks beyond its argument into the storage, which a copy to the device does not have",
    "stft": "torch_npu has no gradient of its window",
}

# Run without ``out=``.
NO_OUT: dict[str, str] = dict.fromkeys(
    ["fft.ihfft2", "fft.ihfftn"],
    "PyTorch conjugates `out` of one dimension in place of the result, and leaves it as it was",
)
