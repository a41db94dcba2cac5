// Device memory as tensors of the CPU. A tensor in a private format lies in another order and with padding: before a
// kernel it is unpacked into memory of the host, and after one that wrote it, packed again.
#include "launcher.h"

#include <torch_npu/csrc/core/NPUStorageImpl.h>

namespace sim {

namespace {

constexpr int64_t BLOCK = 16;  // rows and columns of a fractal, channels of a C0

struct Layout {
  char* memory;
  std::vector<int64_t> sizes, storage_sizes;
  int format;
  c10::ScalarType dtype;

  at::Tensor stored() const { return at::from_blob(memory, storage_sizes, at::TensorOptions().dtype(dtype)); }
};

const torch_npu::NPUStorageDesc& description(const at::Tensor& tensor) {
  return static_cast<torch_npu::NPUStorageImpl*>(tensor.storage().unsafeGetStorageImpl())->npu_desc_;
}

int64_t up(int64_t length) { return (length + BLOCK - 1) / BLOCK * BLOCK; }

// A view of the padded memory with the axes of the plain tensor: [..., N1, M1, M0, N0] -> [..., M, N].
at::Tensor plain_of(const Layout& layout) {
  at::Tensor stored = layout.stored();
  const auto& sizes = layout.sizes;
  int64_t n = int64_t(sizes.size());
  switch (layout.format) {
    case ACL_FORMAT_FRACTAL_NZ: {
      int64_t last = stored.dim();
      at::Tensor swapped = stored.movedim(last - 4, last - 2);  // [..., M1, M0, N1, N0]
      std::vector<int64_t> shape(sizes.begin(), sizes.end() - 2);
      shape.insert(shape.end(), {up(sizes[n - 2]), up(sizes[n - 1])});
      return swapped.reshape(shape);
    }
    case ACL_FORMAT_NC1HWC0:  // [N, C1, H, W, C0] -> [N, C, H, W]
      return stored.permute({0, 1, 4, 2, 3}).reshape({sizes[0], up(sizes[1]), sizes[2], sizes[3]});
    case ACL_FORMAT_FRACTAL_Z: {  // [C1*H*W, N1, N0, C0] -> [N, C, H, W]
      at::Tensor parts = stored.reshape({up(sizes[1]) / BLOCK, sizes[2], sizes[3], up(sizes[0]), BLOCK});
      return parts.permute({3, 0, 4, 1, 2}).reshape({up(sizes[0]), up(sizes[1]), sizes[2], sizes[3]});
    }
    default:
      TORCH_CHECK(false, "the simulated device does not know the private format ", layout.format);
  }
}

at::Tensor cut_to(at::Tensor padded, const std::vector<int64_t>& sizes) {
  for (size_t i = 0; i < sizes.size(); i++) padded = padded.narrow(int64_t(i), 0, sizes[i]);
  return padded;
}

void pack(const at::Tensor& plain, const Layout& layout) {
  Layout scratch = layout;
  at::Tensor stored = at::zeros(layout.storage_sizes, at::TensorOptions().dtype(layout.dtype));
  at::Tensor order = at::arange(stored.numel(), at::kLong).reshape(layout.storage_sizes);
  scratch.memory = static_cast<char*>(order.data_ptr());
  scratch.dtype = at::kLong;
  at::Tensor places = cut_to(plain_of(scratch), layout.sizes);  // where each element lies
  stored.view(-1).index_copy_(0, places.reshape(-1), plain.reshape(-1));
  layout.stored().copy_(stored);
}

at::Tensor over(const at::Tensor& tensor, void* start) {
  return at::from_blob(start, tensor.sizes(), tensor.strides(), at::TensorOptions().dtype(tensor.scalar_type()));
}

}  // namespace

bool is_private(const at::Tensor& tensor) {
  if (!is_npu(tensor) || !tensor.has_storage()) return false;
  int format = description(tensor).npu_format_;
  return format != ACL_FORMAT_ND && format != ACL_FORMAT_NCHW && format != ACL_FORMAT_NHWC && format != ACL_FORMAT_NCDHW &&
      format != ACL_FORMAT_UNDEFINED;
}

at::Tensor host_view(const at::Tensor& tensor, bool written, std::vector<Step>& before, std::vector<Step>& after) {
  at::Tensor view;
  if (!is_private(tensor)) {
    view = over(tensor, tensor.data_ptr());
  } else {
    const auto& desc = description(tensor);
    Layout layout{static_cast<char*>(const_cast<void*>(tensor.storage().data())),
                  {desc.base_sizes_.begin(), desc.base_sizes_.end()},
                  {desc.storage_sizes_.begin(), desc.storage_sizes_.end()},
                  int(desc.npu_format_),
                  tensor.scalar_type()};
    at::Tensor plain = at::empty(layout.sizes, at::TensorOptions().dtype(layout.dtype));
    view = plain.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    before.push_back({[plain, layout] { plain.copy_(cut_to(plain_of(layout), layout.sizes)); }});
    if (written) after.push_back({[plain, layout] { pack(plain, layout); }});
  }
  if (tensor.is_conj()) view = view.conj();
  return tensor.is_neg() ? view._neg_view() : view;
}

}  // namespace sim
