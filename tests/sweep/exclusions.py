"""What the sweep leaves out, by name, and why; and the ops that every sample of it must hold."""

from __future__ import annotations

# Entries of op_db that are not run at all.
EXCLUDED: dict[str, str] = {}

# Entries of op_db whose samples for an NPU are those of the CPU, moved there: some are made with another memory format,
# and torch_npu makes contiguous tensors only.
MADE_ON_CPU: frozenset[str] = frozenset(
    (
        "nn.functional.max_pool2d",
        "nn.functional.max_unpool2d",
        "nn.functional.max_unpool2d.grad",
        "max_pool2d_with_indices_backward",
    )
)

# Entries of op_db whose results are memory that nothing wrote: all but the bits is compared.
UNWRITTEN = (
    *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
    *("resize_", "resize_as_"),
)
UNDETERMINED: dict[str, str] = dict.fromkeys(UNWRITTEN, "returns memory that nothing wrote") | dict.fromkeys(
    ("linalg.lstsq", "linalg.lstsq.grad_oriented"), "two bare runs differ: LAPACK leaves parts unwritten"
)
# The same on a GPU.
UNDETERMINED_ON_CUDA: dict[str, str] = {"nn.functional.adaptive_avg_pool2d": "its gradient is summed in any order"}

# Entries of op_db that PyTorch's C++ computes otherwise while a TorchDispatchMode is on (isTensorSubclassLike). They run
# with our mode off, so their bits are those of the bare run; the ops inside them are not recorded, and not compared.
RECORDED_WHOLE: dict[str, str] = dict.fromkeys(
    (
        "max.reduction_no_dim",
        "min.reduction_no_dim",
        "median",
        "nanmedian",
        "prod",
        "masked.prod",
        "cumprod",
        "linalg.vander",  # by a complex cumprod
        "masked.cumprod",
        "masked.median",
        "linalg.pinv",
        "linalg.pinv.singular",
        "linalg.pinv.hermitian",
        "pinverse",
    ),
    "runs with the mode off, as PyTorch takes another formula under any TorchDispatchMode",
)

# aten ops of whose results parts are never written: the bits there are another in each run.
PARTLY_WRITTEN: dict[str, str] = dict.fromkeys(
    ("aten::_ctc_loss", "aten::_ctc_loss.Tensor", "aten::_ctc_loss_backward", "aten::_ctc_loss_backward.Tensor"),
    "log_alpha is written up to the length of each target only",
)

# aten ops that are given memory that nothing wrote, and do not look at it.
READS_UNDEFINED: dict[str, str] = dict.fromkeys(
    ("aten::rrelu_with_noise", "aten::rrelu_with_noise_backward"), "writes and reads its noise in training only"
)

# aten ops that write what their schema does not say, or say what they do not write: argument names.
WRITES: dict[str, set[str]] = {
    "aten::native_batch_norm": {"running_mean", "running_var"},
    "aten::rrelu_with_noise": {"noise"},
}

# Names in every sample: in-place and hidden writes, views, bits, sparse results, random numbers, memory half written.
SPECIAL: frozenset[str] = frozenset(
    (
        "nn.functional.batch_norm",
        "nn.functional.rrelu",
        "nn.functional.dropout",
        "nn.functional.pad",
        "empty",
        "resize_",
        "as_strided",
        "conj",
        "imag",
        "to_sparse",
        "sparse.mm",
        "bernoulli",
        "index_put",
        "combinations",
        "linalg.svd",
        "add",
    )
)
