#include "adapters/layer_kind.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>

#include "gate/linear_weight.h"

namespace accelerate::detail {

namespace {

// Number of groups of one of LibTorch's convolutions.
template <class Convolution>
std::optional<std::int64_t> groups_of(const torch::nn::Module& module) {
  const auto* const found = dynamic_cast<const Convolution*>(&module);
  if (found == nullptr) return std::nullopt;
  return found->options.groups();
}

std::int64_t known_groups(const torch::nn::Module& module) {
  if (const auto found = groups_of<torch::nn::Conv1dImpl>(module))
    return *found;
  if (const auto found = groups_of<torch::nn::Conv2dImpl>(module))
    return *found;
  if (const auto found = groups_of<torch::nn::Conv3dImpl>(module))
    return *found;
  return 1;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

std::string short_class_name(const torch::nn::Module& module) {
  std::string name = module.name();
  name = name.substr(name.find_last_of(".:") + 1);
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

at::Tensor own_parameter(const torch::nn::Module& module, const char* name) {
  const auto own = module.named_parameters(/*recurse=*/false);
  const at::Tensor* const found = own.find(name);
  return found == nullptr ? at::Tensor() : *found;
}

std::optional<LayerFacts> layer_facts(
    const torch::nn::Module& module,
    bool fan_in_fan_out) {
  LayerFacts facts{.weight = own_parameter(module, "weight")};
  if (!facts.weight.defined()) return std::nullopt;
  const std::string name = short_class_name(module);
  const std::int64_t dims = facts.weight.dim();
  if (dims >= 3 && dims <= 5) {
    if (!name.starts_with("Conv") || contains(name, "Transpose"))
      return std::nullopt;
    facts.kind = LayerKind::convolution;
    facts.groups = known_groups(module);
    return facts;
  }
  if (dims != 2) return std::nullopt;
  if (contains(name, "Embedding")) {
    facts.kind = LayerKind::embedding;
    return facts;
  }
  const LinearClass linear = linear_class_of(module);
  if (linear == LinearClass::transposed ||
      (linear == LinearClass::none && fan_in_fan_out)) {
    facts.kind = LayerKind::transposed_linear;
  }
  return facts;
}

}  // namespace accelerate::detail
