#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/pipeline_value.h>
#include <accelerate/export.h>

namespace torch::nn {
class Module;
class Sequential;
}  // namespace torch::nn

namespace accelerate {

namespace detail {

class DividedProgram;

struct PipelineLayer {
  std::string name;
  /// The modules whose parameters it uses, by their names in the model.
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>
      modules;
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  std::function<PipelineValue(const PipelineValue&)> forward;
  /// Buffers that layers share, which never change; each rank has its own.
  std::vector<std::pair<std::string, at::Tensor>> buffers = {};
  /// What `forward` runs, if it is a graph of an exported program.
  std::shared_ptr<DividedProgram> program = nullptr;
};

// The types of a function's parameters. Only the types of these are used.
template <class R, class... Args>
TypeList<Args...> parameters(R (*function)(Args...));
template <class R, class C, class... Args>
TypeList<Args...> parameters(R (C::*function)(Args...));
template <class R, class C, class... Args>
TypeList<Args...> parameters(R (C::*function)(Args...) const);
template <class Function>
auto parameters(const Function& function)
    -> decltype(parameters(&Function::operator()));
template <class Function>
using ParametersOf = decltype(parameters(std::declval<Function>()));

template <class First, class... Rest>
TypeList<Rest...> without_first(TypeList<First, Rest...>);

/// Calls `function` with what the previous layer returned, as its parameters
/// take it.
template <class Function, class... Args>
PipelineValue call_layer(
    const std::string& layer,
    Function&& function,
    const PipelineValue& inputs,
    TypeList<Args...>) {
  using Parameters = std::tuple<std::remove_cvref_t<Args>...>;
  if constexpr (sizeof...(Args) == 1) {
    return pipeline_value(function(
        pipeline_argument<std::tuple_element_t<0, Parameters>>(layer, inputs)));
  } else {
    return pipeline_value(
        std::apply(function, pipeline_argument<Parameters>(layer, inputs)));
  }
}

template <class M>
std::shared_ptr<M> pipeline_module(const std::shared_ptr<M>& module) {
  return module;
}
template <class Holder>
  requires requires { typename Holder::ContainedType; }
std::shared_ptr<typename Holder::ContainedType> pipeline_module(
    const Holder& module) {
  return module.is_empty() ? nullptr : module.ptr();
}

/// A module holder, or a shared_ptr to a module.
template <class T>
concept PipelineModule = requires(const T& module) {
  {
    pipeline_module(module)
  } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
};

}  // namespace detail

/// Inside a layer of a pipeline, the number of the micro-batch, from 0: a layer
/// can keep something per micro-batch until the next forward, such as keys and
/// values of earlier tokens. 0 elsewhere.
ACCELERATE_API int current_micro_batch();

/// The layers of a model in the order in which its forward computes them, for a
/// Pipeline to divide into stages. A layer takes what the previous one
/// returned; what later layers also need (a mask, a skip connection) is passed
/// through as an additional tensor. Names are those in the model ("blocks.3"):
/// weights are saved, loaded and shown under them.
///
/// Layers share the program's modules; nothing is copied. Build the same ones
/// on all ranks.
///
///     accelerate::PipelineLayers layers;
///     layers.add("embedding", net->embedding);
///     layers.add_each<BlockImpl>("blocks", *net->blocks);
///     layers.add("head", net->head, [](HeadImpl& head, torch::Tensor x) {
///       return head.forward(torch::relu(x));
///     });
class ACCELERATE_API PipelineLayers {
 public:
  PipelineLayers() = default;
  /// The modules of a Sequential. They can return tensors, tuples of up to
  /// eight, vectors, or maps with strings for keys.
  PipelineLayers(const torch::nn::Sequential& modules);

  /// Adds a module with its own `forward`. It can take and return tensors, and
  /// tuples, pairs, arrays, vectors, optionals and maps of them, to any depth;
  /// maps have strings for keys. Parameters that are tensors, or optionals or
  /// tuples of them, take the tensors that the previous layer returned one
  /// after another, however they were nested; parameters with vectors or maps
  /// must be nested as those were.
  template <detail::PipelineModule M>
  PipelineLayers& add(std::string name, const M& module) {
    auto owned = detail::pipeline_module(module);
    using Impl = typename decltype(owned)::element_type;
    return add(
        {name, {{name, owned}}, {}, nullptr},
        [owned](auto&&... arguments) -> decltype(auto) {
          return owned->forward(
              std::forward<decltype(arguments)>(arguments)...);
        },
        detail::ParametersOf<decltype(&Impl::forward)>());
  }
  /// Adds `forward(module, tensors...)`: a lambda or function with the module
  /// (`M&`, the class behind the holder) first, and then parameters as above.
  template <detail::PipelineModule M, class Function>
  PipelineLayers& add(std::string name, const M& module, Function forward) {
    auto owned = detail::pipeline_module(module);
    return add(
        {name, {{name, owned}}, {}, nullptr},
        [owned,
         forward = std::move(forward)](auto&&... arguments) -> decltype(auto) {
          return forward(
              *owned, std::forward<decltype(arguments)>(arguments)...);
        },
        decltype(detail::without_first(detail::ParametersOf<Function>()))());
  }
  /// Adds a function without trainable parameters.
  template <class Function>
    requires(!detail::PipelineModule<Function>)
  PipelineLayers& add(std::string name, Function forward) {
    return add(
        {std::move(name), {}, {}, nullptr},
        std::move(forward),
        detail::ParametersOf<Function>());
  }
  /// Adds each module of a Sequential, under the names "name.0", "name.1" and
  /// so on.
  PipelineLayers& add_each(
      const std::string& name,
      const torch::nn::Sequential& modules);
  /// Adds each module of a ModuleList, all of the class `Impl`.
  template <class Impl, class List>
  PipelineLayers& add_each(const std::string& name, const List& modules) {
    for (std::size_t i = 0; i < modules.size(); ++i) {
      add(name + "." + std::to_string(i), modules.template ptr<Impl>(i));
    }
    return *this;
  }

  /// Declares that the layer added last also uses this module or parameter,
  /// which may belong to other layers as well: a tied embedding, or a parameter
  /// of the model itself. The ranks that have it add up their gradients.
  template <detail::PipelineModule M>
  PipelineLayers& uses(std::string name, const M& module) {
    return use(std::move(name), detail::pipeline_module(module));
  }
  PipelineLayers& uses(std::string name, const at::Tensor& parameter);
  /// Adds a layer that the library describes itself.
  PipelineLayers& add(detail::PipelineLayer layer);

  /// Number of layers added.
  [[nodiscard]] std::size_t size() const { return layers_.size(); }
  [[nodiscard]] const std::vector<detail::PipelineLayer>& layers() const {
    return layers_;
  }

 private:
  template <class Function, class Parameters>
  PipelineLayers&
  add(detail::PipelineLayer layer, Function function, Parameters) {
    layer.forward = [name = layer.name, function = std::move(function)](
                        const detail::PipelineValue& inputs) {
      return detail::call_layer(name, function, inputs, Parameters());
    };
    return add(std::move(layer));
  }
  PipelineLayers& use(
      std::string name,
      std::shared_ptr<torch::nn::Module> module);

  std::vector<detail::PipelineLayer> layers_;
};

}  // namespace accelerate
