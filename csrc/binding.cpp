// The only file that knows torch: checks the tensors of one call and hands raw pointers to a built walk.
//
// The kernel library is opened from Python (ctypes); its launcher arrives here as an address, and so does the prepared
// parameter block. Compiles against any torch, with or without CUDA: the stream is an address, too.
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
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

struct Sizes {
  int64_t batch, steps;  // of the call
  int max_batch, max_steps, vocab_size;
};

// bf16 [batch, steps, >= vocab], last stride 1.
void check_logits(const char* name, const at::Tensor& logits, const Sizes& sizes) {
  if (logits.dim() != 3 || logits.size(0) != sizes.batch || logits.size(1) != sizes.steps)
    refuse(name, " has shape ", logits.sizes(), "; it must be [", sizes.batch, ", ", sizes.steps, ", vocabulary]");
  if (logits.size(2) < sizes.vocab_size)
    refuse(name, " holds ", logits.size(2), " columns; the vocabulary needs at least ", int64_t{sizes.vocab_size});
  if (logits.stride(2) != 1) refuse("the last stride of ", name, " is ", logits.stride(2), "; it must be 1: call .contiguous()");
}

void check_shapes(const at::Tensor& base_logits, const at::Tensor& anchor, const at::Tensor& tokens, const Sizes& sizes) {
  if (base_logits.dim() != 3) refuse("base_logits has shape ", base_logits.sizes(), "; it must be [batch, positions, vocabulary]");
  if (sizes.batch < 1 || sizes.batch > sizes.max_batch)
    refuse("base_logits holds ", sizes.batch, " batch rows; this walk was prepared for 1 to ", int64_t{sizes.max_batch});
  if (sizes.steps < 1 || sizes.steps > sizes.max_steps)
    refuse("base_logits holds ", sizes.steps, " positions; this walk was prepared for 1 to ", int64_t{sizes.max_steps});
  check_logits("base_logits", base_logits, sizes);
  if (anchor.dim() != 1 || anchor.size(0) != sizes.batch || (sizes.batch > 1 && anchor.stride(0) != 1))
    refuse("anchor has shape ", anchor.sizes(), " and strides ", anchor.strides(), "; it must be [", sizes.batch, "], contiguous");
  if (tokens.dim() != 2 || tokens.size(0) != sizes.batch || tokens.size(1) != sizes.steps || (sizes.steps > 1 && tokens.stride(1) != 1))
    refuse("tokens_out has shape ", tokens.sizes(), " and strides ", tokens.strides(), "; it must be [", sizes.batch, ", ", sizes.steps,
           "] with last stride 1");
}

// What every call gives; returns its sizes.
Sizes check(int max_batch, int max_steps, int vocab_size, int device, const at::Tensor& base_logits, const at::Tensor& anchor,
            const at::Tensor& tokens) {
  check_tensor("base_logits", base_logits, at::kBFloat16, device);
  check_tensor("anchor", anchor, at::kLong, device);
  check_tensor("tokens_out", tokens, at::kLong, device);
  const bool deep = base_logits.dim() == 3;
  const Sizes sizes{deep ? base_logits.size(0) : 0, deep ? base_logits.size(1) : 0, max_batch, max_steps, vocab_size};
  check_shapes(base_logits, anchor, tokens, sizes);
  return sizes;
}

void launch(int64_t launcher, int64_t error_string, int64_t prepared, int grid_blocks, int max_batch, int max_steps, int device,
            int64_t stream, const at::Tensor& base_logits, const at::Tensor& anchor, const at::Tensor& tokens,
            const std::optional<at::Tensor>& positions, const std::optional<at::Tensor>& temperatures, uint64_t noise_key,
            const std::optional<at::Tensor>& noise_offset, const std::optional<at::Tensor>& logits_out) {
  wts::WalkParams params = *reinterpret_cast<const wts::WalkParams*>(prepared);
  const Sizes sizes = check(max_batch, max_steps, params.vocab_size, device, base_logits, anchor, tokens);
  params.base_logits = static_cast<const uint16_t*>(base_logits.data_ptr());
  params.base_row_stride = base_logits.stride(0);
  params.base_step_stride = base_logits.stride(1);
  params.anchors = static_cast<const int64_t*>(anchor.data_ptr());
  params.tokens = static_cast<int64_t*>(tokens.data_ptr());
  params.tokens_row_stride = tokens.stride(0);
  params.batch = static_cast<int32_t>(sizes.batch);
  params.steps = static_cast<int32_t>(sizes.steps);
  if (positions) params.positions = static_cast<const float*>(positions->data_ptr());
  if (temperatures) {
    check_tensor("temperatures", *temperatures, at::kFloat, device);
    if (temperatures->dim() != 1 || temperatures->size(0) != sizes.batch || (sizes.batch > 1 && temperatures->stride(0) != 1))
      refuse("temperatures has shape ", temperatures->sizes(), "; it must be [", sizes.batch, "], contiguous");
    if (!noise_offset) refuse("temperatures need a noise offset; none was given");
    check_tensor("the noise offset", *noise_offset, at::kLong, device);
    if (noise_offset->numel() != 1) refuse("the noise offset has ", noise_offset->numel(), " elements; it must have 1");
    params.temperatures = static_cast<const float*>(temperatures->data_ptr());
    params.noise_offset = static_cast<int64_t*>(noise_offset->data_ptr());
    params.noise_key_low = static_cast<uint32_t>(noise_key);
    params.noise_key_high = static_cast<uint32_t>(noise_key >> 32);
  }
  if (logits_out) {
    check_tensor("logits_out", *logits_out, at::kBFloat16, device);
    check_logits("logits_out", *logits_out, sizes);
    params.logits_out = static_cast<uint16_t*>(logits_out->data_ptr());
    params.logits_row_stride = logits_out->stride(0);
    params.logits_step_stride = logits_out->stride(1);
  }
  const int error = reinterpret_cast<Launch>(launcher)(&params, grid_blocks, reinterpret_cast<void*>(stream));
  if (error != 0)
    throw std::runtime_error(std::string("the walk did not launch: ") + reinterpret_cast<ErrorString>(error_string)(error));
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("launch", &launch, "Check the tensors of one walk and launch it on a stream");
  module.def("check", [](int max_batch, int max_steps, int vocab_size, int device, const at::Tensor& base_logits, const at::Tensor& anchor,
                         const at::Tensor& tokens) { check(max_batch, max_steps, vocab_size, device, base_logits, anchor, tokens); },
             "Check the tensors of a call that is launched row by row, over candidates of each");
}
