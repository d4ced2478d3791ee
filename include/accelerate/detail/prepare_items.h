#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <vector>

#include <accelerate/data_loader.h>
#include <accelerate/export.h>
#include <accelerate/model.h>
#include <accelerate/model_options.h>
#include <accelerate/optimizer.h>
#include <accelerate/parallel.h>
#include <accelerate/scheduler.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace accelerate {

namespace detail {

struct Session;
struct PreparedModel;

struct RequestedModel {
  std::shared_ptr<torch::nn::Module> module;
  /// Null if the model has no options of its own.
  std::shared_ptr<const ModelOptions> options;
};

/// The arguments of one prepare() call, not yet modified.
struct ACCELERATE_API PrepareRequest {
  void add(
      std::shared_ptr<torch::nn::Module> module,
      const ModelOptions* options);

  std::vector<RequestedModel> models;
  std::vector<torch::optim::Optimizer*> optimizers;
  std::vector<SchedulerReference> schedulers;
};

/// The prepared objects, each kind in the order of the request.
struct PrepareResult {
  std::vector<std::shared_ptr<PreparedModel>> models;
  std::vector<std::shared_ptr<PreparedOptimizer>> optimizers;
  std::vector<std::shared_ptr<PreparedScheduler>> schedulers;
  std::size_t next_model = 0, next_optimizer = 0, next_scheduler = 0;
};

/// State of Accelerator::init_model() while the model is constructed.
class ACCELERATE_API ModelConstruction {
 public:
  /// `only_on_rank_0`: only the first rank of the model, or of this pipeline
  /// stage, initializes parameters; the others begin with its values.
  ModelConstruction(const Mesh& mesh, bool only_on_rank_0);
  ~ModelConstruction();
  ModelConstruction(ModelConstruction&&) noexcept;
  /// Called when the modules are made. Collective if only rank 0 initialized
  /// them.
  void finish();

 private:
  struct Scope;
  std::unique_ptr<Scope> scope_;
};

template <class T>
concept ModuleHolder = requires(T& holder) {
  typename T::ContainedType;
  { holder.ptr() };
};
template <class T>
struct IsModulePointer : std::false_type {};
template <class M>
struct IsModulePointer<std::shared_ptr<M>>
    : std::is_convertible<M*, torch::nn::Module*> {};
template <class T>
struct IsModuleWithOptions : std::false_type {};
template <class M>
struct IsModuleWithOptions<ModuleWithOptions<M>> : std::true_type {};
template <class T>
concept OptimizerLike = std::is_convertible_v<T*, torch::optim::Optimizer*>;
template <class T>
concept SchedulerLike = std::is_constructible_v<SchedulerReference, T*>;
template <class T>
concept LoaderLike =
    requires(T& loader, LoaderContext context) { loader.attach(context); };
template <class T>
struct IsUniquePointer : std::false_type {};
template <class L, class D>
struct IsUniquePointer<std::unique_ptr<L, D>> : std::true_type {};

}  // namespace detail

}  // namespace accelerate
