"""The variables of the environment that decide what a run computes, or how it is recorded; values of secrets masked."""

from __future__ import annotations

import os
from typing import Final

from .plain_text import without_secrets

_PREFIXES: Final = (
    *("ATEN_", "TORCH", "PYTORCH_", "PYTHONHASHSEED", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "ONEDNN_", "DNNL_"),
    *("CUDA_", "CUBLAS", "CUDNN_", "NVIDIA_", "NVTE_", "NCCL_", "ROCM_", "HIP_", "MIOPEN_", "ROCBLAS_"),
    *("ASCEND_", "NPU_", "HCCL_", "GLOO_", "TRITON_", "XLA_", "FLASH_ATTENTION_", "ACCELERATE_", "DEEPSPEED_", "FSDP_"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LD_PRELOAD"),
)
_OWN: Final = "ATEN_DUMP_RUN"  # how `aten-dump run` hands on the configuration, which the dump has anyway


def variables_that_matter() -> dict[str, str]:
    """Return variables by name, in order of names; what is named as a secret has the value ``***``."""
    found = {}
    for name, text in sorted(os.environ.items()):
        if name.startswith(_PREFIXES) and not name.startswith(_OWN):
            found[name] = without_secrets([f"{name}={text}"])[0].partition("=")[2]
    return found
