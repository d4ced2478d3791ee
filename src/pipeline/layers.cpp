#include <accelerate/pipeline_layers.h>

#include <algorithm>
#include <optional>

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate {

namespace {

using detail::format;
using torch::nn::AnyModule;
using torch::nn::AnyValue;

template <class Tuple>
bool take_tuple(AnyValue& value, PipelineTensors& tensors) {
  Tuple* const tuple = value.try_get<Tuple>();
  if (tuple == nullptr) return false;
  tensors = detail::tensors_in(*tuple);
  return true;
}

PipelineTensors tensors_of(const std::string& layer, AnyValue value) {
  using at::Tensor;
  if (Tensor* const tensor = value.try_get<Tensor>()) return {*tensor};
  PipelineTensors tensors;
  if (take_tuple<std::tuple<Tensor, Tensor>>(value, tensors) ||
      take_tuple<std::tuple<Tensor, Tensor, Tensor>>(value, tensors) ||
      take_tuple<std::tuple<Tensor, Tensor, Tensor, Tensor>>(value, tensors)) {
    return tensors;
  }
  throw ConfigError(format(
      "[pipeline] layer \"{}\" of the Sequential returns neither a tensor nor "
      "a tuple of up to four; add it with a function that does "
      "(PipelineLayers::add)",
      layer));
}

// A Sequential hands on what the module before returned; only its first module
// takes several arguments.
AnyValue forward_any(
    AnyModule& module,
    const std::string& layer,
    const PipelineTensors& in,
    bool is_first) {
  using at::Tensor;
  if (in.size() == 1) return module.any_forward(in[0]);
  if (is_first) {
    if (in.size() == 2) return module.any_forward(in[0], in[1]);
    if (in.size() == 3) return module.any_forward(in[0], in[1], in[2]);
    if (in.size() == 4) return module.any_forward(in[0], in[1], in[2], in[3]);
  } else {
    if (in.size() == 2) return module.any_forward(std::tuple(in[0], in[1]));
    if (in.size() == 3)
      return module.any_forward(std::tuple(in[0], in[1], in[2]));
    if (in.size() == 4)
      return module.any_forward(std::tuple(in[0], in[1], in[2], in[3]));
  }
  throw ConfigError(format(
      "[pipeline] layer \"{}\" of the Sequential is given {} tensors; at most "
      "four are possible",
      layer,
      in.size()));
}

}  // namespace

void detail::throw_layer_arguments(
    const std::string& layer,
    std::size_t taken,
    std::size_t given) {
  throw ConfigError(format(
      "[pipeline] layer \"{}\" takes {} tensor{}, but is given {}; let the "
      "layer before it return as many",
      layer,
      taken,
      taken == 1 ? "" : "s",
      given));
}

PipelineLayers::PipelineLayers(const torch::nn::Sequential& modules) {
  add_each("", modules);
}

PipelineLayers& PipelineLayers::add_each(
    const std::string& name,
    const torch::nn::Sequential& modules) {
  const auto children = modules->named_children();
  std::size_t i = 0;
  for (const AnyModule& module : *modules) {
    const std::string& key = children[i].key();
    const std::string full = name.empty() ? key : name + "." + key;
    const auto held = std::make_shared<AnyModule>(module);
    add(
        {full,
         {{full, held->ptr()}},
         {},
         [held, full, is_first = i == 0](const PipelineTensors& inputs) {
           return tensors_of(full, forward_any(*held, full, inputs, is_first));
         }});
    ++i;
  }
  return *this;
}

PipelineLayers& PipelineLayers::uses(
    std::string name,
    const at::Tensor& parameter) {
  if (layers_.empty() || !parameter.defined()) {
    throw ConfigError(format(
        "[pipeline] uses(\"{}\") {}",
        name,
        layers_.empty() ? "comes before the layer; call add() first"
                        : "was given an undefined tensor"));
  }
  layers_.back().parameters.emplace_back(std::move(name), parameter);
  return *this;
}

PipelineLayers& PipelineLayers::use(
    std::string name,
    std::shared_ptr<torch::nn::Module> module) {
  if (layers_.empty() || !module) {
    throw ConfigError(format(
        "[pipeline] uses(\"{}\") {}",
        name,
        layers_.empty() ? "comes before the layer; call add() first"
                        : "was given an empty module"));
  }
  layers_.back().modules.emplace_back(std::move(name), std::move(module));
  return *this;
}

PipelineLayers& PipelineLayers::add(detail::PipelineLayer layer) {
  const auto has_name = [&](const detail::PipelineLayer& other) {
    return other.name == layer.name;
  };
  std::string wrong;
  if (layer.name.empty()) {
    wrong = "has no name; give it its name in the model";
  } else if (std::any_of(layers_.begin(), layers_.end(), has_name)) {
    wrong = "was added before; names are different";
  } else if (std::any_of(
                 layer.modules.begin(),
                 layer.modules.end(),
                 [](const auto& module) { return module.second == nullptr; })) {
    wrong = "is an empty module holder; make the module first";
  }
  if (!wrong.empty()) {
    throw ConfigError(format(
        "[pipeline] layer {} (\"{}\") {}",
        layers_.size() + 1,
        layer.name,
        wrong));
  }
  layers_.push_back(std::move(layer));
  return *this;
}

}  // namespace accelerate
