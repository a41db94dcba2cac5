// Random numbers: the device's generator is a seed and an offset. Each call takes the next offset, and the CPU's kernel
// draws from a generator of its own made of both: so states can be saved, set and forked as on a device.
#include "launcher.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch_npu/csrc/aten/NPUGeneratorImpl.h>

namespace sim {

constexpr uint64_t OFFSETS_OF_A_CALL = 12;  // a multiple of 4, as the device wants

static uint64_t mixed(uint64_t seed, uint64_t offset) {
  uint64_t x = seed * 0x9e3779b97f4a7c15ull + offset;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  return x ^ x >> 31;
}

std::optional<at::Generator> drawn_generator(const OperatorHandle& op, Stack& arguments, c10::Device device) {
  const auto& declared = op.schema().arguments();
  for (size_t i = 0; i < declared.size(); i++) {
    if (declared[i].name() != "generator") continue;
    bool is_given = arguments[i].isGenerator() && arguments[i].toGenerator().defined();
    TORCH_CHECK(!is_given || arguments[i].toGenerator().device().type() == NPU,
                "Expected a 'npu' device type for generator but found 'cpu'");
    at::Generator source = is_given ? arguments[i].toGenerator() : at_npu::detail::getDefaultNPUGenerator(device.index());
    std::lock_guard<std::mutex> lock(source.mutex());
    uint64_t seed = source.current_seed(), offset = source.get_offset();
    source.set_offset(offset + OFFSETS_OF_A_CALL);
    arguments[i] = at::detail::createCPUGenerator(mixed(seed, offset));
    return arguments[i].toGenerator();
  }
  return std::nullopt;
}

}  // namespace sim
