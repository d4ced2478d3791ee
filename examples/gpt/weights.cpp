#include "weights.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <span>
#include <string>

#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <accelerate/accelerate.h>
#include <accelerate/safetensors.h>

namespace fs = std::filesystem;
namespace st = accelerate::safetensors;

namespace {

void write_file(
    const fs::path& file,
    const std::map<std::string, torch::Tensor>& tensors) {
  std::vector<st::Declaration> declared;
  for (const auto& [name, tensor] : tensors)
    declared.push_back(
        {name, st::Dtype::F32, {tensor.sizes().begin(), tensor.sizes().end()}});
  st::Writer writer(file, declared, {{"format", "pt"}});
  for (const std::string& name : writer.order()) {
    const torch::Tensor& tensor = tensors.at(name);
    writer.write(std::as_bytes(std::span(
        tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel()))));
  }
  writer.finish();
}

std::map<std::string, torch::Tensor> tensors_of(
    const torch::nn::Module& module,
    const std::string& prefix) {
  std::map<std::string, torch::Tensor> tensors;
  for (const auto& [name, tensor] : accelerate::get_state_dict(module))
    tensors.emplace(prefix + name, tensor.detach().contiguous());
  return tensors;
}

std::string file_name(std::int64_t number, std::int64_t count) {
  std::array<char, 64> text{};
  std::snprintf(
      text.data(),
      text.size(),
      "model-%05lld-of-%05lld.safetensors",
      static_cast<long long>(number),
      static_cast<long long>(count));
  return text.data();
}

}  // namespace

void write_initial_weights(
    const GptOptions& options,
    const fs::path& directory) {
  fs::create_directories(directory);
  const std::int64_t count = options.num_layers + 1;
  nlohmann::ordered_json index{
      {"metadata", {{"total_size", 0}}},
      {"weight_map", nlohmann::ordered_json::object()}};
  std::int64_t total = 0;
  const auto add = [&](std::int64_t number, const auto& tensors) {
    const std::string name = file_name(number, count);
    write_file(directory / name, tensors);
    for (const auto& [key, tensor] : tensors) {
      index["weight_map"][key] = name;
      total += tensor.numel() * tensor.element_size();
    }
  };
  accelerate::Progress progress(
      {.description = "writing random weights", .total = count});
  // Random numbers are drawn in the order of Gpt's constructor.
  torch::nn::Embedding tokens(GptImpl::kTokens, options.width);
  torch::nn::Embedding positions(options.block_size, options.width);
  for (std::int64_t i = 0; i < options.num_layers; ++i) {
    const Block block(options);
    add(i + 1, tensors_of(*block, "blocks." + std::to_string(i) + "."));
    progress.update();
  }
  {
    const torch::NoGradGuard no_grad;
    for (const torch::Tensor& weight : {tokens->weight, positions->weight})
      weight.normal_(0, 0.02);
  }
  auto rest = tensors_of(*tokens, "tokens.");
  rest.merge(tensors_of(*positions, "positions."));
  const torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({options.width}));
  rest.merge(tensors_of(*norm, "norm."));
  add(count, rest);
  progress.update();
  index["metadata"]["total_size"] = total;
  // The index comes last: with it, the weights are complete.
  std::ofstream(directory / "model.safetensors.index.json") << index.dump(2);
}
