// aten::copy_. Between host and device the real package copies what is contiguous and of one dtype, with its own rules
// for pinned memory and waiting; casts and layouts are kernels on the device.
#include "launcher.h"

namespace sim {

static std::unique_ptr<c10::SafeKernelFunction> package_copy;

static at::Tensor& copied_by_package(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  Stack stack{to, from, non_blocking};
  package_copy->callBoxed(package_copy->opHandle(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &stack);
  return to;
}

static void copy_on_device(const OperatorHandle& op, const at::Tensor& to, const at::Tensor& from) {
  Stack stack{to, from, false};
  launch(op, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), &stack);
}

static at::Tensor plain(const OperatorHandle& op, const at::Tensor& from, at::ScalarType dtype) {
  if (from.is_contiguous() && from.scalar_type() == dtype && !is_private(from) && !from.is_neg() && !from.is_conj()) return from;
  at::Tensor made = at::empty(from.sizes(), from.options().dtype(dtype).memory_format(c10::MemoryFormat::Contiguous));
  copy_on_device(op, made, from);
  return made;
}

static void to_device(const OperatorHandle& op, at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  at::Tensor source = from.resolve_conj().resolve_neg().contiguous();
  if (to.is_contiguous() && to.sizes() == from.sizes() && to.scalar_type() == from.scalar_type() && !is_private(to)) {
    copied_by_package(to, source, non_blocking);
    return;
  }
  at::Tensor raw = at::empty(from.sizes(), from.options().device(to.device()).pinned_memory(false).memory_format(c10::MemoryFormat::Contiguous));
  copied_by_package(raw, source, non_blocking);
  copy_on_device(op, to, raw);
}

static void to_host(const OperatorHandle& op, at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  at::Tensor source = plain(op, from.sizes() == to.sizes() ? from : from.expand(to.sizes()), to.scalar_type());
  if (to.is_contiguous() && !to.is_neg() && !to.is_conj()) {
    copied_by_package(to, source, non_blocking);
    return;
  }
  at::Tensor buffer = at::empty(source.sizes(), source.options().device(c10::kCPU));
  copied_by_package(buffer, source, false);
  to.copy_(buffer);
}

static void between_devices(const OperatorHandle& op, at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  at::Tensor source = plain(op, from.sizes() == to.sizes() ? from : from.expand(to.sizes()), to.scalar_type());
  if (to.is_contiguous() && !is_private(to)) {
    copied_by_package(to, source, non_blocking);
    return;
  }
  at::Tensor there = at::empty(source.sizes(), source.options().device(to.device()));
  copied_by_package(there, source, non_blocking);
  copy_on_device(op, to, there);
}

static void copy(const OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  bool non_blocking = torch::jit::pop(*stack).toBool();
  at::Tensor from = torch::jit::pop(*stack).toTensor(), to = torch::jit::pop(*stack).toTensor();
  c10::OptionalDeviceGuard guard(is_npu(to) ? to.device() : from.device());
  if (to.numel()) {
    Unseen unseen;
    if (is_npu(to) && is_npu(from)) {
      if (to.device() == from.device()) copy_on_device(op, to, from);
      else between_devices(op, to, from, non_blocking);
    } else if (is_npu(to)) {
      to_device(op, to, from, non_blocking);
    } else {
      to_host(op, to, from, non_blocking);
    }
  }
  stack->push_back(to);
}

// Register `copy` for aten::copy_, over the real package's kernel, which it calls.
void install_copy() {
  auto& dispatcher = c10::Dispatcher::singleton();
  OperatorHandle op = dispatcher.findSchemaOrThrow("aten::copy_", "");
  package_copy = std::make_unique<c10::SafeKernelFunction>(op.getComputedKernelForDispatchKey(c10::DispatchKey::PrivateUse1));
  static auto handle = dispatcher.registerImpl(op.operator_name(), c10::DispatchKey::PrivateUse1,
      c10::KernelFunction::makeFromBoxedFunction<&copy>(), std::nullopt, nullptr, "simulated device");
}

}  // namespace sim
