// What an op will return, by running it on meta tensors; remembered, as meta kernels are mostly Python.
#include "launcher.h"

#include <mutex>
#include <unordered_map>

namespace sim {

namespace {

constexpr size_t MOST_REMEMBERED = 20000;
constexpr size_t LONGEST_KEY = 8000;  // bytes: lists of hundreds of tensors come in ever other orders

std::mutex lock;
std::unordered_map<std::string, std::optional<Inferred>> remembered;

template <typename T>
void append(std::string& key, T value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_tensor(std::string& key, const at::Tensor& tensor) {
  key += 't';
  if (!tensor.defined()) return;
  append(key, char(tensor.scalar_type()));
  append(key, char(tensor.device().type()));
  append(key, char(tensor.unsafeGetTensorImpl()->is_wrapped_number()));
  append(key, tensor.dim());
  for (int64_t size : tensor.sizes()) append(key, size);
  for (int64_t stride : tensor.strides()) append(key, stride);
}

// False for what the key cannot hold.
bool append_value(std::string& key, const IValue& value) {
  key += '|';
  if (value.isTensor()) append_tensor(key, value.toTensor());
  else if (value.isNone() || value.isGenerator()) key += 'n';
  else if (value.isInt()) append(key += 'i', value.toInt());
  else if (value.isDouble()) append(key += 'd', value.toDouble());
  else if (value.isBool()) key += value.toBool() ? 'T' : 'F';
  else if (value.isString()) key += 's' + value.toStringRef();
  else if (value.isDevice()) append(key += 'D', char(value.toDevice().type()));
  else if (value.isList()) {
    append(key += 'l', value.toListRef().size());
    for (const IValue& each : value.toListRef())
      if (!append_value(key, each)) return false;
  } else {
    return false;
  }
  return true;
}

at::Tensor meta_of(const at::Tensor& tensor) {
  // Plain numbers come as tensors of the CPU without dimensions, and promote dtypes in their own way.
  if (!tensor.defined() || (tensor.device().is_cpu() && !tensor.dim())) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta).pinned_memory(false));
}

bool returns_tensors(const c10::FunctionSchema& schema) {
  for (const c10::Argument& returned : schema.returns()) {
    bool is_list = returned.type()->isSubtypeOf(*c10::ListType::ofTensors());
    if (!is_list && !returned.type()->isSubtypeOf(*c10::OptionalType::ofTensor())) return false;
  }
  return true;
}

std::optional<Inferred> run_on_meta(const OperatorHandle& op, const Stack& arguments) {
  if (!returns_tensors(op.schema())) return std::nullopt;
  Inferred found;
  for (const IValue& value : arguments)
    found.arguments.push_back(value.isGenerator() ? IValue() : with_tensors(value, c10::kMeta, meta_of));
  found.returns = found.arguments;
  try {
    op.callBoxed(&found.returns);
  } catch (const std::exception&) {  // no meta kernel, or an error of the program: the CPU's kernel will tell
    return std::nullopt;
  }
  return found;
}

}  // namespace

std::optional<Inferred> inferred(const OperatorHandle& op, const Stack& arguments) {
  std::string key = op.schema().name() + "." + op.schema().overload_name();
  append(key, char(c10::get_default_dtype_as_scalartype()));
  for (const IValue& value : arguments)
    if (!append_value(key, value) || key.size() > LONGEST_KEY) return run_on_meta(op, arguments);
  {
    std::lock_guard<std::mutex> guard(lock);
    auto known = remembered.find(key);
    if (known != remembered.end()) return known->second;
  }
  std::optional<Inferred> found = run_on_meta(op, arguments);
  std::lock_guard<std::mutex> guard(lock);
  if (remembered.size() >= MOST_REMEMBERED) remembered.clear();
  remembered.emplace(std::move(key), found);
  return found;
}

}  // namespace sim
