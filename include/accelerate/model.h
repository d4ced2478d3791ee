#pragma once

#include <concepts>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/handles.h>
#include <accelerate/detail/step_parts.h>
#include <accelerate/export.h>
#include <accelerate/full_parameters.h>
#include <accelerate/nested.h>
#include <accelerate/precision.h>
#include <accelerate/weights.h>

namespace torch::nn {
class Module;
}

namespace accelerate {

struct ExpertLoad;  // experts.h

namespace detail {

struct PreparedModel;

/// The tensor in the dtype that a sharded model computes in; otherwise
/// unchanged.
ACCELERATE_API at::Tensor adapt_input(
    const PreparedModel& model,
    const at::Tensor& input);

template <class T>
inline constexpr bool kIsTensor =
    std::is_same_v<std::remove_cvref_t<T>, at::Tensor>;

/// The type in which a forward's argument of type T is passed on.
template <class T>
using Adapted = std::conditional_t<kIsTensor<T>, at::Tensor, T&&>;

// See the functions of Model that call them.
ACCELERATE_API WeightList
weights_of(const PreparedModel& model, const StateDictOptions& options);
ACCELERATE_API std::vector<WeightShard> shards_of(const PreparedModel& model);
ACCELERATE_API std::vector<ExpertLoad> take_expert_loads(PreparedModel& model);
ACCELERATE_API void drop_gradients(
    const PreparedModel& model,
    const std::vector<at::Tensor>& parameters,
    bool set_to_none);

/// Whether forward passes of the model need nothing but the module's own
/// function. Valid as long as the model; determined in its first forward pass.
ACCELERATE_API const bool& runs_directly(const PreparedModel& model);

/// One forward pass of a prepared model: opens autocast and notifies the
/// strategies. Must be destroyed on the thread that made it.
class ACCELERATE_API ForwardScope {
 public:
  explicit ForwardScope(PreparedModel& model);
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

  /// Whether a strategy reads or changes the forward's outputs.
  [[nodiscard]] bool needs_outputs() const { return needs_outputs_; }
  /// Returns the output in single precision if autocast lowered it.
  [[nodiscard]] at::Tensor restore_precision(const at::Tensor& output) const;
  /// Called when the forward has ended. `outputs` is null if no strategy needs
  /// them, or their type is unknown.
  void finish(const std::vector<at::Tensor>* outputs);
  /// Called while the forward's exception is handled: strategies may throw one
  /// that says more; otherwise it is rethrown.
  [[noreturn]] void fail(const std::exception& error);

 private:
  void begin();

  PreparedModel& model_;
  StepPartScope part_;
  bool has_work_;
  bool needs_outputs_ = false;
  std::optional<AutocastScope> autocast_;
  /// See KeptCastScope and LayerProductScope.
  std::shared_ptr<void> casts_;
  std::shared_ptr<void> products_;
};

}  // namespace detail

/// A prepared module. A cheap handle: copies refer to the same model. Forward
/// passes go through it, so that autocast, sharding and gradient averaging see
/// them; `model->forward(x)` would bypass them and does not compile.
///
/// Like the module itself, not thread-safe.
template <class M>
class Model {
 public:
  /// The module as `operator->` shows it. A compiler that refuses to change it
  /// prints this name.
  using ReadOnly_call_model_x_or_model_eval_or_use_model_module = M;

  Model(
      std::shared_ptr<M> module,
      std::shared_ptr<detail::PreparedModel> prepared)
      : module_(std::move(module)),
        prepared_(std::move(prepared)),
        runs_directly_(&detail::runs_directly(*prepared_)) {}

  /// Calls the module's `forward` with the given arguments.
  template <class... Args>
  auto operator()(Args&&... args) const {
    // A forward that takes a tensor by reference gets the user's own tensor.
    constexpr bool takes_adapted = requires(M& module) {
      module.forward(std::declval<detail::Adapted<Args>>()...);
    };
    if constexpr (takes_adapted) {
      return call([&](M& module) -> decltype(auto) {
        return module.forward(adapt(std::forward<Args>(args))...);
      });
    } else {
      constexpr bool takes_given =
          requires(M& module) { module.forward(std::declval<Args>()...); };
      static_assert(
          takes_given,
          "the module's forward() does not take these arguments: compare their "
          "number and types with its declaration");
      if constexpr (takes_given) {
        return call([&](M& module) -> decltype(auto) {
          return module.forward(std::forward<Args>(args)...);
        });
      }
    }
  }

  /// Runs any other computation on the module as one forward pass: another
  /// method, or several of them. `function` takes `M&`; its result is returned,
  /// with tensors in full precision even under autocast.
  template <class Function>
  auto call(Function&& function) const {
    using Output = std::decay_t<std::invoke_result_t<Function, M&>>;
    if (*runs_directly_) return Output(std::invoke(function, *module_));
    detail::ForwardScope scope(*prepared_);
    try {
      if constexpr (std::is_void_v<Output>) {
        std::invoke(function, *module_);
        scope.finish(nullptr);
      } else {
        Output output = std::invoke(function, *module_);
        hand_over(scope, output);
        return output;
      }
    } catch (const std::exception& error) {
      scope.fail(error);
    }
  }

  /// Read access to the module's members: `model->fc1->weight`. To change the
  /// module, use the handle, `call()` or `module()`.
  const ReadOnly_call_model_x_or_model_eval_or_use_model_module* operator->()
      const {
    return module_.get();
  }
  /// The user's own module. Calling its forward directly bypasses the session.
  [[nodiscard]] const std::shared_ptr<M>& module() const { return module_; }

  /// Puts the module into training mode, or out of it.
  void train(bool on = true) const { module_->train(on); }
  /// Puts the module into evaluation mode.
  void eval() const { module_->eval(); }
  /// Whether it is in training mode.
  [[nodiscard]] bool is_training() const { return module_->is_training(); }

  /// The module's own tensors. Those of a sharded model hold this rank's shard,
  /// or nothing, between forward and backward passes; see full_parameters().
  [[nodiscard]] std::vector<at::Tensor> parameters() const {
    return module_->parameters();
  }
  /// The module's own tensors with their names, as LibTorch's ordered
  /// dictionary.
  [[nodiscard]] auto named_parameters(bool recurse = true) const {
    return module_->named_parameters(recurse);
  }
  /// The module's buffers; every rank has them in full.
  [[nodiscard]] std::vector<at::Tensor> buffers() const {
    return module_->buffers();
  }
  /// The module's buffers with their names.
  [[nodiscard]] auto named_buffers(bool recurse = true) const {
    return module_->named_buffers(recurse);
  }
  /// Drops all gradients, also those of an unfinished window, which
  /// Optimizer::zero_grad() would keep.
  void zero_grad(bool set_to_none = true) const {
    detail::drop_gradients(*prepared_, module_->parameters(), set_to_none);
  }
  /// The model's tensors by name, as Accelerator::get_state_dict() returns
  /// them; if the model is sharded, all ranks must call it.
  [[nodiscard]] WeightList state_dict(
      const StateDictOptions& options = {}) const {
    return detail::weights_of(*prepared_, options);
  }
  /// Returns this rank's shards of the model's tensors, with their offsets.
  [[nodiscard]] std::vector<WeightShard> state_dict_shards() const {
    return detail::shards_of(*prepared_);
  }
  /// While the returned scope lives, the module's parameters are full, in the
  /// dtype on which optimizers step (fp32 under bf16 or fp16), and can be read
  /// or changed; changes must be the same on all ranks, and are kept exactly.
  /// All ranks must call it, outside forward and backward. Forwards of the
  /// prepared model inside the scope compute in their usual precision, for
  /// which a copy of the parameters is rounded; the module's own forward gets
  /// the parameters as they are. Needed for sharded parameters and
  /// master_weights only; others are always full.
  [[nodiscard]] FullParameters full_parameters() const {
    return detail::unshard_parameters(prepared_);
  }
  /// Returns how many tokens all ranks have sent to the experts of each
  /// ExpertLayer of the model since the last call; if a pipeline divides the
  /// model, for this rank's layers only. Collective. To log them:
  /// log(to_tracked_values(loads), step). Needs experts.h.
  // A template, since ExpertLoad is incomplete without experts.h, and clang
  // would need its destructor here.
  template <class Load = ExpertLoad>
  [[nodiscard]] std::vector<Load> expert_loads() const {
    std::vector<Load> (*take)(detail::PreparedModel&) =
        detail::take_expert_loads;
    return take(*prepared_);
  }

  [[nodiscard]] const std::shared_ptr<detail::PreparedModel>& prepared() const {
    return prepared_;
  }

 private:
  template <class T>
  detail::Adapted<T> adapt(T&& argument) const {
    if constexpr (detail::kIsTensor<T>) {
      return *runs_directly_ ? at::Tensor(argument)
                             : detail::adapt_input(*prepared_, argument);
    } else {
      return std::forward<T>(argument);
    }
  }

  template <class Output>
  static void hand_over(detail::ForwardScope& scope, Output& output) {
    if constexpr (NestedTensors<Output>) {
      if (scope.needs_outputs()) {
        std::vector<at::Tensor> tensors;
        visit_tensors(output, [&](at::Tensor& tensor) {
          tensor = scope.restore_precision(tensor);
          tensors.push_back(tensor);
        });
        return scope.finish(&tensors);
      }
    }
    scope.finish(nullptr);
  }

  detail::KeptPtr<M> module_;
  detail::KeptPtr<detail::PreparedModel> prepared_;
  const bool* runs_directly_;
};

/// Accelerate's name for `model.module()`.
template <class M>
[[nodiscard]] const std::shared_ptr<M>& extract_model_from_parallel(
    const Model<M>& model) {
  return model.module();
}

namespace detail {

/// A prepared model of any module, as the parameter of a function.
struct ModelReference {
  template <class M>
  ModelReference(const Model<M>& model)
      : prepared(*model.prepared()), module(*model.module()) {}

  PreparedModel& prepared;
  const torch::nn::Module& module;
};

template <class T>
inline constexpr bool kIsModel = false;
template <class M>
inline constexpr bool kIsModel<Model<M>> = true;

/// The model passed to accumulate() or no_sync().
template <class T>
PreparedModel* prepared_of(const T& model) {
  static_assert(
      kIsModel<T>,
      "accumulate() and no_sync() take prepared models: pass "
      "what prepare() returned");
  if constexpr (kIsModel<T>) {
    return model.prepared().get();
  } else {
    return nullptr;
  }
}
}  // namespace detail

}  // namespace accelerate
