"""What cannot run with ``--device npu|cuda``, and why. Everything else in the suites that the option is for must."""

from __future__ import annotations

from typing import Final

_OTHER_OPS: Final = (
    "expects ops of the CPU: an NPU has matmul, linear and others as one op, where the CPU composes them"
)
_NOT_COUNTED: Final = "this device's `_foreach_*_` kernels do not count writes, so that the bare program does not raise"
_OWN_THREAD: Final = "sets the state of the thread that runs backward, which on an accelerator is the engine's own"

_DRAWS_AGAIN: Final = "reentrant: what is computed again is not what the forward computed here; not understood yet"
_PACKED: Final = "to be mended: by saved-tensor hooks, errors of modified tensors are not in the words of the device's"
_NO_CHANNELS_LAST: Final = "an NPU makes contiguous tensors only"
_IS_A_MODE: Final = "counts function modes; the default device of torch is one itself"

_CHECKPOINT: Final = "tests/capture/autograd/test_checkpoint.py::"
_INPLACE: Final = "tests/capture/autograd/test_inplace_errors.py::test_error_is_that_of_the_bare_program"
_NODES: Final = "tests/capture/autograd/test_node_runs.py::"

# Beginnings of test ids.
_ANY: Final[dict[str, str]] = {
    f"{_NODES}test_the_optimizer_s_thread_that_is_ours_at_the_moment_is_left_alone": _OWN_THREAD,
    f"{_NODES}test_the_function_mode_sees_the_python_of_a_node_and_goes_again": _IS_A_MODE,
}
_NPU: Final[dict[str, str]] = {
    "tests/capture/autograd/test_saved_packs.py::": _PACKED,
    f"{_CHECKPOINT}test_nested": _OTHER_OPS,
    f"{_CHECKPOINT}test_equal_layers_are_told_apart[True-": _DRAWS_AGAIN,
    "tests/capture/autograd/test_graph_links.py::test_checkpoint_recompute_points": _OTHER_OPS,
    "tests/promises/test_bitwise.py::test_models_and_optimizers_pairwise[resnet_channels_last-": _NO_CHANNELS_LAST,
    f"{_CHECKPOINT}test_with_create_graph": _OTHER_OPS,
    f"{_CHECKPOINT}test_inputs_saved_elsewhere": _OTHER_OPS,
    f"{_INPLACE}[module_weight_stepped_between_forward_and_backward-": _NOT_COUNTED,
    f"{_INPLACE}[weights_stepped_by_a_foreach_optimizer-": _NOT_COUNTED,
    f"{_INPLACE}[foreach_write-": _NOT_COUNTED,
    "tests/capture/autograd/test_double_backward.py::test_retain_graph_runs_are_calls_of_their_own": _OTHER_OPS,
    "tests/capture/autograd/test_hooks_of_the_program.py::test_saved_tensor_hooks": _OTHER_OPS,
}


def reason_of(test: str, device: str) -> str | None:
    """Return why a test does not run on a device; None where it does."""
    found = _ANY | (_NPU if device == "npu" else {})
    return next((reason for name, reason in found.items() if test.startswith(name)), None)
