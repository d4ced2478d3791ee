#include <accelerate/pipeline_layers.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate {

namespace {

using detail::format;
using detail::PipelineValue;
using torch::nn::AnyModule;
using torch::nn::AnyValue;

constexpr std::size_t kMostInTuple = 8;

template <std::size_t>
using TensorAt = at::Tensor;
template <std::size_t... i>
std::tuple<TensorAt<i>...> tuple_type(std::index_sequence<i...>);
template <std::size_t n>
using TensorTuple = decltype(tuple_type(std::make_index_sequence<n>()));

template <class T>
bool take_as(AnyValue& any, PipelineValue& value) {
  T* const found = any.try_get<T>();
  if (found != nullptr) value = detail::pipeline_value(*found);
  return found != nullptr;
}

template <std::size_t... n>
bool take_tuple(
    AnyValue& any,
    PipelineValue& value,
    std::index_sequence<n...>) {
  return (take_as<TensorTuple<n + 1>>(any, value) || ...);
}

PipelineValue value_in(const std::string& layer, AnyValue any) {
  PipelineValue value;
  if (take_as<at::Tensor>(any, value) || take_as<PipelineTensors>(any, value) ||
      take_as<std::map<std::string, at::Tensor>>(any, value) ||
      take_as<std::unordered_map<std::string, at::Tensor>>(any, value) ||
      take_tuple(any, value, std::make_index_sequence<kMostInTuple>())) {
    return value;
  }
  throw ConfigError(format(
      "[pipeline] layer \"{}\" of the Sequential must return a tensor, or a "
      "tuple of up to {}, a vector or a map of them, but does not; add it with "
      "a function that does (PipelineLayers::add)",
      layer,
      kMostInTuple));
}

// Calls `function` with a tuple of the tensors.
template <class Function, std::size_t... n>
std::optional<AnyValue> with_tuple(
    const PipelineTensors& tensors,
    const Function& function,
    std::index_sequence<n...>) {
  std::optional<AnyValue> result;
  const auto call = [&]<std::size_t count>() {
    if (tensors.size() == count) {
      result = function(
          detail::pipeline_argument<TensorTuple<count>>("", {tensors, ""}));
    }
  };
  (call.template operator()<n + 1>(), ...);
  return result;
}

// A Sequential passes on the previous module's result; only its first module
// takes several arguments.
AnyValue forward_any(
    AnyModule& module,
    const std::string& layer,
    const PipelineValue& in,
    bool is_first) {
  const char kind = in.structure.empty() ? '(' : in.structure.front();
  if (kind == 't') return module.any_forward(in.tensors[0]);
  if (kind == '{') {
    return module.any_forward(
        detail::pipeline_argument<std::map<std::string, at::Tensor>>(
            layer, in));
  }
  if (kind == '[' && !is_first) return module.any_forward(in.tensors);
  const auto call = [&](const auto& tuple) {
    if (!is_first) return module.any_forward(tuple);
    return std::apply(
        [&](const auto&... each) { return module.any_forward(each...); },
        tuple);
  };
  auto result =
      with_tuple(in.tensors, call, std::make_index_sequence<kMostInTuple>());
  if (result) return *std::move(result);
  throw ConfigError(format(
      "[pipeline] layer \"{}\" of the Sequential gets {} tensors, but can take "
      "at most {}",
      layer,
      in.tensors.size(),
      kMostInTuple));
}

std::string subject_of(std::string_view layer) {
  const bool is_layer =
      layer != detail::kLossFunction && layer != detail::kOutputsAs;
  return is_layer ? format("layer \"{}\"", layer) : std::string(layer);
}

}  // namespace

namespace detail {

// Beyond the last tensor, tensor() returns an undefined one: finish() then
// knows how many were requested.
at::Tensor PipelineValueReader::tensor() {
  if (ignores_nesting_) {
    const std::size_t place = num_tensors_++;
    return place < value_.tensors.size() ? value_.tensors[place] : at::Tensor();
  }
  if (next() != 't') complain("a tensor");
  ++place_;
  return value_.tensors[num_tensors_++];
}

bool PipelineValueReader::skip_none() {
  const bool is_none = ignores_nesting_
      ? num_tensors_ >= value_.tensors.size() ||
          !value_.tensors[num_tensors_].defined()
      : next() == 'n';
  if (!is_none) return false;
  ++place_;
  ++num_tensors_;
  return true;
}

void PipelineValueReader::enter_list() {
  if (ignores_nesting_) return;
  if (next() != '(' && next() != '[') complain("several values");
  ++place_;
}

void PipelineValueReader::enter_map() {
  if (next() != '{') complain("a map");
  ++place_;
}

bool PipelineValueReader::leave() {
  const char end = next();
  if (end != ')' && end != ']' && end != '}') return false;
  ++place_;
  return true;
}

void PipelineValueReader::end() {
  if (!ignores_nesting_ && !leave()) complain("no further value");
}

std::string PipelineValueReader::key() {
  const std::string& text = value_.structure;
  std::size_t size = 0;
  while (next() >= '0' && next() <= '9')
    size = 10 * size + static_cast<std::size_t>(text[place_++] - '0');
  if (next() != ':') complain("a key");
  std::string key = text.substr(place_ + 1, size);
  place_ += 1 + size;
  return key;
}

void PipelineValueReader::finish() {
  if (ignores_nesting_) {
    const std::size_t given = value_.tensors.size();
    if (num_tensors_ == given) return;
    throw ConfigError(format(
        "[pipeline] {} takes {} tensor{}, but gets {}; let the layer before it "
        "return as many",
        subject_of(layer_),
        num_tensors_,
        num_tensors_ == 1 ? "" : "s",
        given));
  }
  if (place_ != value_.structure.size()) complain("no further value");
}

char PipelineValueReader::next() const {
  return place_ < value_.structure.size() ? value_.structure[place_] : '\0';
}

void PipelineValueReader::complain(const char* wanted) const {
  const char found = next();
  const char* const what = found == 't' ? "a tensor"
      : found == 'n'                    ? "an optional without value"
      : found == '(' || found == '['    ? "several values"
      : found == '{'                    ? "a map"
                                        : "the end";
  throw ConfigError(format(
      "[pipeline] {} takes {}, but gets {}; parameters with vectors or maps "
      "must be nested as the layer before returns them",
      subject_of(layer_),
      wanted,
      what));
}

}  // namespace detail

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
         [held, full, is_first = i == 0](const PipelineValue& inputs) {
           return value_in(full, forward_any(*held, full, inputs, is_first));
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
                        : "got an undefined tensor"));
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
                        : "got an empty module"));
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
    wrong =
        "must have a name of its own, but one of that name was added before";
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
