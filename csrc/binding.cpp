// The only file that knows torch: checks the tensors of one call and hands raw pointers to a built walk.
//
// The kernel library is opened from Python (ctypes); its launcher arrives here as an address, and so does the prepared
// parameter block. Compiles against any torch, with or without CUDA: the stream is an address, too.
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <stdexcept>
#include <string>

#include "wts_abi.h"

namespace {

using Launch = int (*)(const wts::WalkParams*, int, void*);
using ErrorString = const char* (*)(int);

// Words are put together only for a message: the checks stand on the path of every eager call. Plain strings, no streams:
// an extension may meet another standard library than its own, and stream locales do not survive that.
std::string word(const char* text) { return text; }
std::string word(int64_t number) { return std::to_string(number); }
std::string word(at::IntArrayRef sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + "]";
}

template <class... Words>
[[noreturn]] void refuse(const Words&... words) {
  throw std::invalid_argument((word(words) + ...));
}

void check_tensor(const char* name, const at::Tensor& tensor, at::ScalarType dtype, int device) {
  if (tensor.scalar_type() != dtype)
    refuse(name, " has dtype ", at::toString(tensor.scalar_type()), "; it must be ", at::toString(dtype));
  if (!tensor.is_cuda() || tensor.get_device() != device)
    refuse(name, " is on ", tensor.is_cuda() ? "cuda:" : "the CPU", tensor.is_cuda() ? std::to_string(tensor.get_device()).c_str() : "",
           "; it must be on cuda:", int64_t{device}, ", where the walk was prepared");
}

// base_logits bf16 [1, steps, >= vocab], anchor int64 [1], tokens int64 [1, steps].
void check_shapes(const at::Tensor& base_logits, const at::Tensor& anchor, const at::Tensor& tokens, int max_steps, int vocab_size) {
  if (base_logits.dim() != 3 || base_logits.size(0) != 1)
    refuse("base_logits has shape ", base_logits.sizes(), "; it must be [1, steps, vocabulary]");
  const int64_t steps = base_logits.size(1);
  if (steps < 1 || steps > max_steps)
    refuse("base_logits holds ", steps, " steps; this walk was prepared for 1 to ", int64_t{max_steps});
  if (base_logits.size(2) < vocab_size)
    refuse("base_logits holds ", base_logits.size(2), " columns; the vocabulary needs at least ", int64_t{vocab_size});
  if (base_logits.stride(2) != 1)
    refuse("the last stride of base_logits is ", base_logits.stride(2), "; it must be 1: call .contiguous()");
  if (anchor.dim() != 1 || anchor.size(0) != 1) refuse("anchor has shape ", anchor.sizes(), "; it must be [1]");
  if (tokens.dim() != 2 || tokens.size(0) != 1 || tokens.size(1) != steps || (steps > 1 && tokens.stride(1) != 1))
    refuse("tokens_out has shape ", tokens.sizes(), " and strides ", tokens.strides(), "; it must be [1, ", steps, "] with last stride 1");
}

void launch(int64_t launcher, int64_t error_string, int64_t prepared, int grid_blocks, int max_steps, int device,
            int64_t stream, const at::Tensor& base_logits, const at::Tensor& anchor, const at::Tensor& tokens) {
  wts::WalkParams params = *reinterpret_cast<const wts::WalkParams*>(prepared);
  check_tensor("base_logits", base_logits, at::kBFloat16, device);
  check_tensor("anchor", anchor, at::kLong, device);
  check_tensor("tokens_out", tokens, at::kLong, device);
  check_shapes(base_logits, anchor, tokens, max_steps, params.vocab_size);
  params.base_logits = static_cast<const uint16_t*>(base_logits.data_ptr());
  params.base_step_stride = base_logits.stride(1);
  params.anchors = static_cast<const int64_t*>(anchor.data_ptr());
  params.tokens = static_cast<int64_t*>(tokens.data_ptr());
  params.steps = static_cast<int32_t>(base_logits.size(1));
  const int error = reinterpret_cast<Launch>(launcher)(&params, grid_blocks, reinterpret_cast<void*>(stream));
  if (error != 0)
    throw std::runtime_error(std::string("the walk did not launch: ") + reinterpret_cast<ErrorString>(error_string)(error));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("launch", &launch, "Check the tensors of one walk and launch it on a stream");
}
