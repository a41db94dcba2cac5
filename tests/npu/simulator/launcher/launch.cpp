// One call of an op: what it will return is known at once, its result comes when the stream gets there.
#include "launcher.h"

#include <ATen/Parallel.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>

namespace sim {

static c10::DispatchKeySet hidden_keys() {
  using K = c10::DispatchKey;
  return c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset | c10::python_ks |
      c10::DispatchKeySet({K::ADInplaceOrView, K::PythonTLSSnapshot, K::PythonDispatcher, K::FuncTorchDynamicLayerFrontMode,
                           K::FuncTorchDynamicLayerBackMode, K::PreDispatch});
}

Unseen::Unseen() : keys_(hidden_keys()), functions_(int(at::impl::PythonTorchFunctionTLS::get_disabled_state())) {
  at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
}

Unseen::~Unseen() {
  at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState(functions_));
}

void* current_stream(c10::Device device) { return c10_npu::getCurrentNPUStream(device.index()).stream(false); }

static void run_work(void* argument) {
  std::unique_ptr<std::function<void()>> work(static_cast<std::function<void()>*>(argument));
  thread_local bool ready = (at::init_num_threads(), true);
  (void)ready;
  Unseen unseen;
  try {
    (*work)();
  } catch (const std::exception& error) {
    sim_stream_failed("%s", error.what());
  }
}

void run_on(void* stream, std::function<void()> work) {
  sim_enqueue(stream, run_work, new std::function<void()>(std::move(work)));
}

void wait_for(void* stream, const char* why) {
  sim_count(why, 0);
  TORCH_CHECK(!sim_wait_for_stream(static_cast<sim_stream*>(stream)), aclGetRecentErrMsg());
}

static Stack arguments_of(const OperatorHandle& op, Stack* stack) {
  size_t count = op.schema().arguments().size();
  Stack arguments(stack->end() - count, stack->end());
  torch::jit::drop(*stack, count);
  return arguments;
}

static at::Tensor allocated(const at::Tensor& like, c10::Device device) {
  if (!like.defined()) return like;
  return at::empty_strided(like.sizes(), like.strides(), like.options().device(device).pinned_memory(false));
}

// An argument of `out=` takes the shape of the result.
static void resize_written(const IValue& given, const IValue& meta) {
  if (!given.isTensor() || !is_npu(given.toTensor())) return;
  at::Tensor tensor = given.toTensor(), wanted = meta.toTensor();
  if (tensor.sizes() == wanted.sizes()) return;
  tensor.resize_(wanted.sizes());
  if (tensor.strides() != wanted.strides()) tensor.as_strided_(wanted.sizes(), wanted.strides(), 0);
}

static void saturate(const at::Tensor& tensor, int device) {
  if (!tensor.defined() || !tensor.is_floating_point() || !tensor.numel()) return;
  if (at::isfinite(tensor).all().item<bool>()) return;
  sim_note_overflow(device);
  tensor.nan_to_num_(0.0);
}

// A tensor of the CPU, which the program may write to before the kernel runs.
static at::Tensor own_copy(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  at::Tensor copied = tensor.clone();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) copied.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copied;
}

struct Kernel {
  OperatorHandle op;
  Stack arguments;
  std::vector<bool> written;
  Stack results;  // where to put them; None for what the op writes itself
  std::vector<Step> before, after;
  int device;
  bool widened;  // compute in float32, as the device does where the CPU has statistics in half precision, or no kernel

  at::Tensor wide(const at::Tensor& tensor) const {
    if (!tensor.defined()) return tensor;
    at::ScalarType type = tensor.scalar_type();
    bool is_half = type == at::kHalf || type == at::kBFloat16;
    bool is_counted = op.schema().name() == "aten::histc";  // by the CPU too, in half precision
    return c10::isIntegralType(type, false) || (is_half && !is_counted) ? tensor.to(at::kFloat) : tensor;
  }

  void put(const at::Tensor& result, const at::Tensor& to) {
    if (!to.defined() || !result.defined()) return;
    if (!result.numel() && to.numel()) {  // batch norm in evaluation keeps nothing on the CPU
      to.zero_();
      return;
    }
    TORCH_CHECK(result.sizes() == to.sizes() && (widened || result.scalar_type() == to.scalar_type()), "the meta kernel of ",
                op.schema().name(), " says ", to.sizes(), " ", to.scalar_type(), ", the CPU's returned ", result.sizes(), " ",
                result.scalar_type());
    to.copy_(result);
  }

  void run() {
    for (Step& step : before) step.run();
    Stack stack = arguments;
    if (widened)
      for (IValue& value : stack) value = with_tensors(value, c10::kCPU, [this](const at::Tensor& tensor) { return wide(tensor); });
    const Stack given = stack;
    op.callBoxed(&stack);
    for (size_t i = 0; widened && i < given.size(); i++) {  // `out=`
      if (!written[i] || !given[i].isTensor() || !given[i].toTensor().defined()) continue;
      if (!given[i].toTensor().is_same(arguments[i].toTensor())) arguments[i].toTensor().copy_(given[i].toTensor());
    }
    for (size_t i = 0; i < results.size(); i++) {
      if (results[i].isTensor()) put(stack[i].toTensor(), results[i].toTensor());
      if (!results[i].isTensorList()) continue;
      for (size_t k = 0; k < results[i].toTensorVector().size(); k++)
        put(stack[i].toTensorVector()[k], results[i].toTensorVector()[k]);
    }
    if (sim_is_saturating(device)) saturate_all();
    for (Step& step : after) step.run();
  }

  void saturate_all() {
    auto each = [this](const at::Tensor& tensor) {
      saturate(tensor, device);
      return tensor;
    };
    for (const IValue& result : results) with_tensors(result, c10::kCPU, each);
    for (size_t i = 0; i < arguments.size(); i++)
      if (written[i]) with_tensors(arguments[i], c10::kCPU, each);
  }
};

static void launch_waiting_with(const OperatorHandle& op, const Stack& arguments, std::optional<at::Generator> drawn, Stack* stack);

static void launch_later(const OperatorHandle& op, Stack* stack, bool widened) {
  Stack arguments = arguments_of(op, stack);
  c10::Device device = device_of(arguments);
  refuse_other_devices(op, arguments, device);
  c10::OptionalDeviceGuard guard(device);
  Unseen unseen;
  std::optional<at::Generator> drawn = drawn_generator(op, arguments, device);
  std::optional<Inferred> known = inferred(op, arguments);
  if (!known) return launch_waiting_with(op, arguments, drawn, stack);

  auto kernel = std::make_shared<Kernel>(Kernel{op, {}, written_arguments(op.schema()), {}, {}, {}, device.index(), widened});
  for (size_t i = 0; i < arguments.size(); i++) {
    bool written = kernel->written[i];
    if (written) resize_written(arguments[i], known->arguments[i]);
    kernel->arguments.push_back(with_tensors(arguments[i], c10::kCPU, [&](const at::Tensor& tensor) {
      if (is_npu(tensor)) return host_view(tensor, written, kernel->before, kernel->after);
      return own_copy(tensor);
    }));
  }
  for (size_t i = 0; i < known->returns.size(); i++) {
    std::optional<size_t> same = argument_of_return(op.schema(), i);
    if (same) {
      stack->push_back(arguments[*same]);
      kernel->results.push_back(IValue());
      continue;
    }
    stack->push_back(with_tensors(known->returns[i], NPU, [&](const at::Tensor& like) { return allocated(like, device); }));
    kernel->results.push_back(with_tensors(stack->back(), c10::kCPU, [&](const at::Tensor& tensor) {
      return tensor.defined() ? host_view(tensor, true, kernel->before, kernel->after) : tensor;
    }));
  }
  run_on(current_stream(device), [kernel] { kernel->run(); });
}

void launch(const OperatorHandle& op, c10::DispatchKeySet, Stack* stack) { launch_later(op, stack, false); }
void launch_widened(const OperatorHandle& op, c10::DispatchKeySet, Stack* stack) { launch_later(op, stack, true); }

// Bring what a kernel computed on the host to the device, when the stream comes there.
static void bring(const at::Tensor& from, const at::Tensor& to) {
  if (!from.defined() || !from.numel()) return;
  auto before = std::make_shared<std::vector<Step>>(), after = std::make_shared<std::vector<Step>>();
  at::Tensor view = host_view(to, true, *before, *after);
  run_on(current_stream(to.device()), [from, view, before, after] {
    for (Step& step : *before) step.run();
    view.copy_(from);
    for (Step& step : *after) step.run();
  });
}

static Stack computed_on_host(const OperatorHandle& op, const Stack& arguments, Stack& given) {
  std::vector<bool> written = written_arguments(op.schema());
  std::vector<Step> before, after;
  for (size_t i = 0; i < arguments.size(); i++)
    given.push_back(with_tensors(arguments[i], c10::kCPU, [&](const at::Tensor& tensor) {
      return is_npu(tensor) ? host_view(tensor, false, before, after) : tensor;
    }));
  for (Step& step : before) step.run();
  for (size_t i = 0; i < given.size(); i++)  // memory of the host, which can grow
    if (written[i])
      given[i] = with_tensors(given[i], c10::kCPU, [](const at::Tensor& t) { return t.defined() ? t.clone() : t; });
  Stack returned = given;
  op.callBoxed(&returned);
  for (size_t i = 0; i < given.size(); i++) {
    if (written[i] && given[i].isTensorList())
      for (size_t k = 0; k < given[i].toTensorVector().size(); k++)
        bring(given[i].toTensorVector()[k], arguments[i].toTensorVector()[k]);
    if (!written[i] || !given[i].isTensor() || !is_npu(arguments[i].toTensor())) continue;
    resize_written(arguments[i], given[i]);
    bring(given[i].toTensor(), arguments[i].toTensor());
  }
  return returned;
}

static void launch_waiting_with(const OperatorHandle& op, const Stack& arguments, std::optional<at::Generator> drawn, Stack* stack) {
  c10::Device device = device_of(arguments);
  wait_for(current_stream(device), "kernel that needs the host");
  Stack given, returned = computed_on_host(op, arguments, given);
  bool to_host = false;  // the program asked for a tensor of the CPU
  for (const IValue& value : arguments) to_host |= value.isDevice() && value.toDevice().is_cpu();
  for (size_t i = 0; i < returned.size(); i++) {
    std::optional<size_t> same = argument_of_return(op.schema(), i);
    stack->push_back(same       ? arguments[*same]
                     : to_host ? returned[i]
                               : with_tensors(returned[i], NPU, [&](const at::Tensor& result) {
                                   at::Tensor placed = allocated(result, device);
                                   if (result.defined()) bring(result, placed);
                                   return placed;
                                 }));
  }
}

void launch_waiting(const OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  Stack arguments = arguments_of(op, stack);
  c10::Device device = device_of(arguments);
  refuse_other_devices(op, arguments, device);
  c10::OptionalDeviceGuard guard(device);
  Unseen unseen;
  launch_waiting_with(op, arguments, drawn_generator(op, arguments, device), stack);
}

}  // namespace sim
