// The arguments of a call: which are tensors, which are written, and what the schema says of its returns.
#include "launcher.h"

#include <set>

namespace sim {

IValue with_tensors(const IValue& value, c10::DeviceType device, const TensorMap& map) {
  if (value.isTensor()) return map(value.toTensor());
  if (value.isDevice() && value.toDevice().type() == NPU) return c10::Device(device);
  if (value.isTensorList()) {
    c10::List<at::Tensor> mapped;
    for (const at::Tensor& each : value.toTensorVector()) mapped.push_back(map(each));
    return mapped;
  }
  if (value.isList() && value.toList().elementType()->isSubtypeOf(*c10::OptionalType::ofTensor())) {
    c10::impl::GenericList mapped(value.toList().elementType());
    for (const IValue& each : value.toList()) mapped.push_back(with_tensors(each, device, map));
    return mapped;
  }
  return value;
}

std::vector<bool> written_arguments(const c10::FunctionSchema& schema) {
  std::vector<bool> written;
  for (const c10::Argument& argument : schema.arguments())
    written.push_back(argument.alias_info() && argument.alias_info()->isWrite());
  return written;
}

std::optional<size_t> argument_of_return(const c10::FunctionSchema& schema, size_t index) {
  const c10::AliasInfo* returned = schema.returns()[index].alias_info();
  if (!returned || !returned->isWrite()) return std::nullopt;
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const c10::AliasInfo* given = schema.arguments()[i].alias_info();
    if (given && given->isWrite() && given->beforeSets() == returned->beforeSets()) return i;
  }
  return std::nullopt;
}

static std::optional<c10::Device> device_in(const IValue& value) {
  std::optional<c10::Device> found;
  with_tensors(value, NPU, [&](const at::Tensor& tensor) {
    // A tensor of no dimensions lends its device only if no other has one.
    if (is_npu(tensor) && (!found || tensor.dim())) found = tensor.device();
    return tensor;
  });
  if (!found && value.isDevice() && value.toDevice().type() == NPU) found = value.toDevice();
  return found;
}

c10::Device device_of(const Stack& arguments) {
  for (const IValue& value : arguments) {
    std::optional<c10::Device> found = device_in(value);
    if (found && found->has_index()) return *found;
  }
  return c10::impl::VirtualGuardImpl(NPU).getDevice();
}

// Take indices from the host, or copy between devices.
static const std::set<std::string> TAKES_OTHER_DEVICES{
    "aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_",
    "aten::_unsafe_index_put", "aten::_foreach_copy_", "aten::_pack_padded_sequence"};

void refuse_other_devices(const OperatorHandle& op, const Stack& arguments, c10::Device device) {
  if (TAKES_OTHER_DEVICES.count(op.schema().name())) return;
  for (const IValue& value : arguments)
    with_tensors(value, NPU, [&](const at::Tensor& tensor) {
      TORCH_CHECK(!tensor.defined() || !tensor.dim() || tensor.device() == device,
                  "Expected all tensors to be on the same device, but found at least two devices, ", device, " and ",
                  tensor.device(), "! (", op.schema().name(), ")");
      return tensor;
    });
}

}  // namespace sim
