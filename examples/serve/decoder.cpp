#include "decoder.h"

#include <algorithm>
#include <map>
#include <string>

#include <torch/nn/module.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <accelerate/error.h>
#include <accelerate/weights.h>

namespace {

using Input = accelerate::ExportedDescription::Input;

// "2 to 64" and "64" are both 64.
std::int64_t largest(const std::string& size) {
  return std::stoll(size.substr(size.rfind(' ') + 1));
}

at::ScalarType dtype_of(const Input& input) {
  const std::map<std::string, at::ScalarType> dtypes = {
      {"float32", at::kFloat},
      {"float64", at::kDouble},
      {"float16", at::kHalf},
      {"bfloat16", at::kBFloat16}};
  return dtypes.at(input.dtype);
}

bool is_decoder(const accelerate::ExportedDescription& program) {
  const auto& inputs = program.inputs;
  if (inputs.size() < 4 || inputs[0].name != "input_ids" ||
      inputs[1].name != "position_ids" ||
      program.outputs != std::vector<std::string>{"logits"})
    return false;
  return std::all_of(inputs.begin() + 2, inputs.end(), [](const Input& input) {
    return input.name.starts_with("cache.") && input.sizes.size() == 4;
  });
}

at::Tensor row_of(std::span<const std::int64_t> numbers) {
  return at::tensor(at::ArrayRef(numbers.data(), numbers.size()), at::kLong);
}

}  // namespace

Decoder::Decoder(
    const std::filesystem::path& program,
    const DecoderOptions& options)
    : model_(accelerate::load_exported(program)), device_(options.device) {
  const auto description = accelerate::inspect_exported(program);
  if (!is_decoder(description))
    throw accelerate::ConfigError(
        "[serve] " + program.string() +
        " must be a program of export_decoder_for_cpp(), but has other inputs "
        "or results");
  if (!options.weights.empty()) {
    accelerate::load_model(*model_, options.weights);
  } else if (!description.has_weights) {
    throw accelerate::ConfigError(
        "[serve] " + program.string() +
        " must have weights, or --weights must name them, but neither is so");
  }
  model_->to(device_);
  for (auto input = description.inputs.begin() + 2;
       input != description.inputs.end();
       ++input) {
    std::vector<std::int64_t> shape;
    for (const std::string& size : input->sizes) shape.push_back(largest(size));
    caches_.push_back(at::zeros(
        shape, at::TensorOptions().dtype(dtype_of(*input)).device(device_)));
  }
  num_slots_ = caches_[0].size(0);
  max_length_ = caches_[0].size(2);
  const std::int64_t token = 0;
  num_logits_ = extend(0, {&token, 1}, 0).size(0);
}

at::Tensor Decoder::extend(
    std::int64_t slot,
    std::span<const std::int64_t> tokens,
    std::int64_t position) {
  const std::int64_t end = position + static_cast<std::int64_t>(tokens.size());
  return run(row_of(tokens).unsqueeze(0),
             at::arange(position, end, at::kLong).unsqueeze(0),
             slot,
             end)
      .squeeze(0);
}

at::Tensor Decoder::step(
    std::span<const std::int64_t> tokens,
    std::span<const std::int64_t> positions) {
  return run(
      row_of(tokens).unsqueeze(1),
      row_of(positions).unsqueeze(1),
      0,
      *std::max_element(positions.begin(), positions.end()) + 1);
}

at::Tensor Decoder::run(
    const at::Tensor& ids,
    const at::Tensor& positions,
    std::int64_t first_slot,
    std::int64_t length) {
  const c10::InferenceMode no_gradients;
  std::vector<c10::IValue> inputs = {ids.to(device_), positions.to(device_)};
  for (const at::Tensor& cache : caches_) {
    inputs.emplace_back(
        cache.narrow(0, first_slot, ids.size(0)).narrow(2, 0, length));
  }
  return model_->forward(std::move(inputs))[0]
      .to(at::kCPU, at::kFloat)
      .contiguous();
}
