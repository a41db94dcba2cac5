// What Python calls: which ops run in which way, and poison in all memory that the caching allocator gives and takes.
#include "launcher.h"

#include <c10/util/Logging.h>
#include <torch_npu/csrc/core/npu/NPUCachingAllocator.h>

namespace sim {

void install_copy();

// The kernel that a device without its own would use.
static void composite(const OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  auto key = c10::DispatchKey::PrivateUse3;
  op.getComputedKernelForDispatchKey(key).callBoxed(op, c10::DispatchKeySet(key), stack);
}

static c10::KernelFunction kernel_of(int mode) {
  switch (mode) {
    case 0: return c10::KernelFunction::makeFromBoxedFunction<&launch>();
    case 1: return c10::KernelFunction::makeFromBoxedFunction<&launch_waiting>();
    case 2: return c10::KernelFunction::makeFromBoxedFunction<&launch_widened>();
    default: return c10::KernelFunction::makeFromBoxedFunction<&composite>();
  }
}

static void poison(const c10_npu::NPUCachingAllocator::TraceEntry& entry) {
  using Action = c10_npu::NPUCachingAllocator::TraceEntry::Action;
  void* start = reinterpret_cast<void*>(entry.addr_);
  if (entry.action_ == Action::ALLOC) sim_given(entry.stream_, start, size_t(entry.size_));
  if (entry.action_ == Action::FREE_COMPLETED) sim_freed(start, size_t(entry.size_));
}

}  // namespace sim

extern "C" {

// mode: 0 runs later, 1 waits for the stream first, 2 runs later in float32, 3 is composed of other ops
// autograd: nothing above the device's kernel, in place of what the real package does there
int sim_route(const char* name, const char* overload, int mode, int autograd) {
  static auto* handles = new std::vector<c10::RegistrationHandleRAII>;
  auto& dispatcher = c10::Dispatcher::singleton();
  auto op = dispatcher.findSchema({name, overload});
  if (!op) return 1;
  c10::WarningUtils::WarningHandlerGuard quiet(c10::WarningUtils::get_warning_handler());
  auto named = op->operator_name();
  handles->push_back(dispatcher.registerImpl(named, c10::DispatchKey::PrivateUse1, sim::kernel_of(mode), std::nullopt, nullptr,
                                             "simulated device"));
  if (autograd)
    handles->push_back(dispatcher.registerImpl(named, c10::DispatchKey::AutogradPrivateUse1,
                                               c10::KernelFunction::makeFallthrough(), std::nullopt, nullptr, "simulated device"));
  return 0;
}

void sim_install_copy() { sim::install_copy(); }

void sim_poison_cached_memory() { c10_npu::NPUCachingAllocator::get()->attachAllocatorTraceTracker(sim::poison); }
}
