"""What cannot run with ``--device npu|cuda``, and why. Everything else in the suites that the option is for must."""

from __future__ import annotations

from typing import Final

_NO_CHANNELS_LAST: Final = "an NPU makes contiguous tensors only"
_IS_A_MODE: Final = "counts function modes; the default device of torch is one itself"
_HOST: Final = "about tensors in host memory, which go another way than those of a device"
_PLAYS: Final = "plays the device on the CPU; tests/npu has the same on one"
_STREAMS: Final = "what reads on a device is ordered by its streams: a transfer on it counts as complete at once"
_NO_SPARSE: Final = "torch_npu has no sparse tensors without its own kernels"
_NO_NESTED: Final = "PyTorch has no kernels for nested tensors of an NPU: the bare program raises"
_SEES_SHARED_MEMORY: Final = "storages of an NPU that lie in one memory are known to: the write is seen"
_NO_INDUCTOR: Final = "inductor has no NPU without Ascend's own triton: the bare program raises"
_RECORDS_NO_OPS: Final = "has no ops recorded, of which the first tells what a thread of the device's has made by then"
_FORKED: Final = "torch refuses autograd in a forked process once the engine has a thread for a device"
_NUMPY: Final = "about writes through numpy, which takes tensors in host memory only"
_GLOO: Final = (
    "its processes compute on the CPU, over gloo; those of tests/npu/trust and tests/npu/migration do over HCCL"
)
_ONE_THREAD: Final = "about hooks on the thread that called the pass; those of a device's tensors are called on another"
_TOLD: Final = "its trainer is told to compute on the CPU"
_NO_QUANTIZED: Final = "the simulated device has no quantized tensors"
_NO_PROFILER: Final = "torch_npu's profiler needs libmspti.so of the CANN toolkit"
_GROWS: Final = "the bare program's memory grows on the simulated device, by five kilobytes a step"
_LENGTHS_ON_CPU: Final = "takes lengths from a list, and torch wants those in host memory: the bare program raises"
_NO_FUSED_ADAGRAD: Final = "torch has no fused Adagrad for a GPU: the bare program raises"
_FUSED_BY_TORCHSCRIPT: Final = "TorchScript makes one kernel of these ops on a GPU, which no mode sees"
_OTHER_MEMORY: Final = "freed memory is not used again at once there, so that the fault does not show"
_NO_FORK: Final = "CUDA cannot be used in a process that was forked from one that uses it"
_NO_PACKED_GRU: Final = "torch_npu packs with the padding left in, and has no GRU for that: the bare program raises"

_STACK: Final = "tests/capture/torch_internals/test_mode_stack.py::"
_INTERCEPT: Final = "tests/capture/intercept/"
_TABLE: Final = "tests/capture/memory/test_storage_table.py::"
_UNSEEN: Final = "tests/capture/values/test_unseen_writes.py::"
_WITHOUT_MEMORY: Final = "tests/capture/values/test_tensors_without_memory.py::"
_DTYPES: Final = "tests/capture/values/test_dtypes.py::test_"
_REAL_PROGRAMS: Final = "tests/promises/test_programs.py::test_"

# Beginnings of test ids.
_ANY: Final[dict[str, str]] = {
    "tests/capture/test_unobserved_memory.py": _HOST,
    "tests/distributed/": _GLOO,
    "tests/integrations/test_lightning_callback.py": _TOLD,
    "tests/integrations/test_transformers_callback.py": _TOLD,
    "tests/promises/test_other_processors.py": "about kinds of CPUs",
    f"{_UNSEEN}test_content_finds_a_write_that_dispatch_does_not_see[numpy_write": _NUMPY,
    f"{_UNSEEN}test_version_does_not_look": _NUMPY,
    f"{_UNSEEN}test_a_write_through_numpy": _NUMPY,
    f"{_UNSEEN}test_a_slice_of_a_huge_buffer": _NUMPY,
    f"{_UNSEEN}test_memory_from_empty_is_defined": _NUMPY,
    f"{_UNSEEN}test_a_module_that_writes_through_numpy": _NUMPY,
    f"{_UNSEEN}test_a_version_that_an_op_began": _NUMPY,
    f"{_UNSEEN}test_what_was_written_unseen": _NUMPY,
    f"{_STACK}test_modes_are_taken_off_from_below": _IS_A_MODE,
    f"{_STACK}test_a_function_mode_goes_back": _IS_A_MODE,
    f"{_STACK}test_the_function_mode_is_put_on": _IS_A_MODE,
    f"{_STACK}test_the_dispatch_mode": _IS_A_MODE,
    f"{_INTERCEPT}test_interception.py::": _IS_A_MODE,
    "tests/capture/autograd/test_node_runs.py::test_nodes_made_in_a_run": _RECORDS_NO_OPS,
    "tests/capture/step/test_collectives.py::test_an_op_that_reads_lands_only_what_is_complete": _STREAMS,
    "tests/capture/step/test_threads.py::test_data_loader_workers[fork]": _FORKED,
    "tests/capture/trigger/test_decisions.py::test_on_the_cpu": _HOST,
    "tests/capture/trigger/measured/test_extremes.py::test_no_number_is_read_for_each_op": _PLAYS,
    "tests/capture/data/test_host_memory.py::test_without_a_device_in_use": _HOST,
    "tests/capture/data/test_keeper.py::test_bytes_are_those_at_the_moment_of_keeping": _HOST,
    "tests/capture/data/test_keeper.py::test_views_of_a_small_tensor": _HOST,
    "tests/capture/data/test_small_tensor_batches.py::test_small_values_share_blobs": _HOST,
    "tests/capture/data/test_keeper.py::test_small_tensors_whose_elements_do_not_lie_in_a_row": _HOST,
    "tests/capture/data/test_hash_functions.py::test_memory_in_a_row": _HOST,
    "tests/capture/data/test_tensor_bytes.py::test_a_checksum_that_is_told_of_a_copy": _HOST,
    "tests/capture/data/test_tensor_bytes.py::test_copied_bytes_are": _HOST,
    "tests/capture/data/test_gather.py::": _HOST,
    "tests/capture/data/test_hashes.py::test_an_expanded_tensor_takes_no_more_memory": _HOST,
    "tests/capture/data/statistics/test_fused_results.py::": _PLAYS,
    "tests/capture/data/statistics/test_large_tensors.py::": _HOST,
    "tests/capture/data/statistics/test_one_pass.py::": _HOST,
    "tests/capture/data/statistics/test_one_tensor.py::": _HOST,
    "tests/capture/data/statistics/test_triton_kernel.py::": _PLAYS,
    "tests/capture/test_collector.py::test_nor_where_the_bytes_of_values_are_stored": _HOST,
    "tests/capture/test_mode.py::test_modes_that_the_engine_has_put_back": _ONE_THREAD,
    "tests/capture/torch_internals/test_engine.py::test_whether_a_pass_makes_a_graph_is_told_in_hooks": _ONE_THREAD,
    "tests/capture/torch_internals/test_engine.py::test_what_a_hook_runs_is_told": _ONE_THREAD,
    "tests/capture/values/test_known_values.py::": _HOST,
    f"{_TABLE}test_what_is_as_it_was_after_unseen_code_is_as_undefined_as_it_was": _HOST,
}
_NPU: Final[dict[str, str]] = {
    f"{_DTYPES}every_geometry[channels_last": _NO_CHANNELS_LAST,
    "tests/capture/data/test_keeper.py::test_facts_are_of_the_elements_however_they_lie[channels last": _NO_CHANNELS_LAST,
    f"{_DTYPES}nested_tensors": _NO_NESTED,
    f"{_UNSEEN}test_calls_on_tensors_without_an_extent_are_recorded[nested": _NO_NESTED,
    f"{_UNSEEN}test_content_finds_a_write_that_dispatch_does_not_see[write_through_another_storage": _SEES_SHARED_MEMORY,
    "tests/capture/autograd/test_backward_calls.py::test_a_sparse_and_a_dense_gradient": _NO_SPARSE,
    "tests/capture/calls/test_python_calls.py::test_the_last_op_s_result_is_the_call_s_and_no_other_tensor_is[False": _NO_NESTED,
    f"{_DTYPES}quantized": _NO_QUANTIZED,
    f"{_DTYPES}sparse": _NO_SPARSE,
    f"{_WITHOUT_MEMORY}test_a_sparse_tensor": _NO_SPARSE,
    f"{_WITHOUT_MEMORY}test_what_is_written_to_a_sparse_tensor": _NO_SPARSE,
    f"{_UNSEEN}test_every_kind_of_tensor_can_be_hashed": _NO_SPARSE,
    "tests/capture/values/test_value_records.py::test_values_are_numbered_in_one_row": _NO_SPARSE,
    "tests/capture/values/test_value_records.py::test_quantized": _NO_QUANTIZED,
    "tests/promises/test_every_op.py::test_every_op_and_every_tensor[resnet_channels_last-": _NO_CHANNELS_LAST,
    "tests/promises/test_other_modes.py::test_anomaly_mode_and_profiler": _NO_PROFILER,
    "tests/promises/test_soak.py::test_a_thousand_steps": _GROWS,
    f"{_INTERCEPT}test_compiled_functions.py::test_opaque_is_bitwise_the_compiled_program[inductor]": _NO_INDUCTOR,
    f"{_TABLE}test_tensors_without_storage_are_left_alone": _NO_SPARSE,
    "tests/capture/memory/test_sparse_parts.py::test_parts_share_the_memory": _NO_SPARSE,
    "tests/capture/step/test_collectives.py::test_a_sparse_tensor": _NO_SPARSE,
    f"{_REAL_PROGRAMS}same_bits[packed_sequence-": _NO_PACKED_GRU,
    f"{_REAL_PROGRAMS}recorded_tensors_are_those_that_an_oracle_sees[packed_sequence]": _NO_PACKED_GRU,
    "tests/promises/test_bitwise.py::test_models_and_optimizers_pairwise[resnet_channels_last-": _NO_CHANNELS_LAST,
    "tests/capture/values/test_value_table.py::test_structure_of_arguments": _NO_CHANNELS_LAST,
}
_CUDA: Final[dict[str, str]] = {
    "tests/accelerator/test_waits.py::test_each_wait_is_needed[of the allocator-True": _OTHER_MEMORY,
    "tests/capture/data/test_device_batches.py::test_where_triton_fails": "a GPU has Triton, which does not fail there",
    "tests/capture/memory/test_storages.py::test_optimizer_writes_are_recorded[fused-Adagrad": _NO_FUSED_ADAGRAD,
    "tests/capture/step/test_threads.py::test_a_forked_child": _NO_FORK,
    "tests/capture/torch_internals/test_tracing.py::test_a_scripted_function": _FUSED_BY_TORCHSCRIPT,
    "tests/promises/test_storage_errors.py::test_what_a_disk_error_has_cut_short": _HOST,
    f"{_REAL_PROGRAMS}same_bits[packed_sequence-": _LENGTHS_ON_CPU,
    f"{_REAL_PROGRAMS}recorded_tensors_are_those_that_an_oracle_sees[packed_sequence]": _LENGTHS_ON_CPU,
}


def reason_of(test: str, device: str) -> str | None:
    """Return why a test does not run on a device; None where it does."""
    found = _ANY | {"npu": _NPU, "cuda": _CUDA}.get(device, {})
    return next((reason for name, reason in found.items() if test.startswith(name)), None)
