// Kernels of the simulated device: each runs the CPU's kernel on the device's bytes, later, on the thread of a stream.
//
// Theory of operation
//   A call of an op on the device comes to `launch` (launch.cpp) as a boxed kernel. The op runs first on meta tensors,
//   which says what shapes and dtypes it will return: those are allocated, a task is put into the current stream's
//   queue, and the call returns. The task holds plain CPU tensors over the addresses, and keeps no memory alive. Where
//   shapes depend on data (nonzero), or the op has no meta kernel, the call waits for its stream, as on a device.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <functional>
#include <optional>
#include <string>
#include <vector>

extern "C" {
typedef struct sim_stream sim_stream;
typedef void (*sim_task)(void*);
void sim_enqueue(void* stream, sim_task run, void* argument);
int sim_wait_for_stream(sim_stream* stream);
void sim_stream_failed(const char* format, ...);
void sim_given(void* stream, void* start, size_t nbytes);
void sim_freed(void* start, size_t nbytes);
void sim_count(const char* what, size_t nbytes);
int sim_is_saturating(int device);
void sim_note_overflow(int device);
const char* aclGetRecentErrMsg(void);
}

namespace sim {

using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

constexpr auto NPU = c10::DeviceType::PrivateUse1;

inline bool is_npu(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == NPU; }

// Neither the program's modes nor autograd see what runs inside.
class Unseen {
 public:
  Unseen();
  ~Unseen();

 private:
  c10::impl::ExcludeDispatchKeyGuard keys_;
  c10::AutoGradMode no_grad_{false};
  int functions_;
};

// arguments.cpp
using TensorMap = std::function<at::Tensor(const at::Tensor&)>;
IValue with_tensors(const IValue& value, c10::DeviceType device, const TensorMap& map);
std::vector<bool> written_arguments(const c10::FunctionSchema& schema);
std::optional<size_t> argument_of_return(const c10::FunctionSchema& schema, size_t index);
c10::Device device_of(const Stack& arguments);
void refuse_other_devices(const OperatorHandle& op, const Stack& arguments, c10::Device device);

// inference.cpp: shapes and dtypes of what an op returns, and of its arguments after it (`out=` is resized); nothing if
// only the data can tell
struct Inferred {
  Stack arguments, returns;
};
std::optional<Inferred> inferred(const OperatorHandle& op, const Stack& arguments);

// formats.cpp: memory of tensors in private formats, as tensors in the usual one
struct Step {
  std::function<void()> run;
};
bool is_private(const at::Tensor& tensor);
at::Tensor host_view(const at::Tensor& tensor, bool written, std::vector<Step>& before, std::vector<Step>& after);

// randomness.cpp: a CPU generator for one call, drawn from the device's; none for ops that draw nothing
std::optional<at::Generator> drawn_generator(const OperatorHandle& op, Stack& arguments, c10::Device device);

// streams
void* current_stream(c10::Device device);
void run_on(void* stream, std::function<void()> work);
void wait_for(void* stream, const char* why);

// launch.cpp
void launch(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);
void launch_widened(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);
void launch_waiting(const OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack);

}  // namespace sim
