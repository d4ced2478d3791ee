#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <accelerate/data_loader.h>
#include <accelerate/export.h>
#include <accelerate/model.h>
#include <accelerate/model_options.h>
#include <accelerate/optimizer.h>
#include <accelerate/parallel.h>
#include <accelerate/scheduler.h>
#include <accelerate/torch_loader.h>

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

/// A loader of this library that was given to prepare().
struct RequestedLoader {
  /// Number of samples; 0 with a batch sampler.
  std::int64_t batch_size = 0;
  /// Whether the batch is that of all ranks together.
  bool splits_batches = false;
};

/// The arguments of one prepare() call, not yet modified.
struct ACCELERATE_API PrepareRequest {
  void add(
      std::shared_ptr<torch::nn::Module> module,
      const ModelOptions* options);

  std::vector<RequestedModel> models;
  std::vector<torch::optim::Optimizer*> optimizers;
  std::vector<SchedulerReference> schedulers;
  std::vector<RequestedLoader> loaders;
};

/// The prepared objects, each kind in the order of the request.
struct PrepareResult {
  std::vector<std::shared_ptr<PreparedModel>> models;
  std::vector<std::shared_ptr<PreparedOptimizer>> optimizers;
  std::vector<std::shared_ptr<PreparedScheduler>> schedulers;
  std::size_t next_model = 0, next_optimizer = 0, next_scheduler = 0;
  /// Makes what one data loader is attached to; valid during prepare().
  std::function<LoaderContext()> loader_context;
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

/// Adds one argument of prepare() to the request.
template <class T>
void collect_item(
    PrepareRequest& request,
    T& item,
    const ModelOptions* options = nullptr) {
  using Item = std::remove_cv_t<T>;
  if constexpr (IsModulePointer<Item>::value) {
    request.add(item, options);
  } else if constexpr (IsModuleWithOptions<Item>::value) {
    collect_item(request, item.module, &item.options);
  } else if constexpr (OptimizerLike<Item>) {
    request.optimizers.push_back(&item);
  } else if constexpr (SchedulerLike<Item>) {
    request.schedulers.emplace_back(&item);
  } else if constexpr (ModuleHolder<Item>) {
    request.add(item.ptr(), options);
  } else {
    static_assert(
        LoaderLike<Item> || IsUniquePointer<Item>::value,
        "prepare() takes modules (holders, shared_ptr, with_options()), "
        "optimizers, LRSchedulers and data loaders");
    if constexpr (requires {
                    item.total_batch_size();
                    item.options().split_batches;
                  }) {
      request.loaders.push_back(
          {item.total_batch_size(), item.options().split_batches});
    }
  }
}

/// The handle of one argument.
template <class T>
auto make_handle(PrepareResult& result, T&& item) {
  using Item = std::remove_cvref_t<T>;
  if constexpr (IsModulePointer<Item>::value) {
    using M = typename Item::element_type;
    return Model<M>(item, std::move(result.models[result.next_model++]));
  } else if constexpr (IsModuleWithOptions<Item>::value) {
    return make_handle(result, item.module);
  } else if constexpr (OptimizerLike<Item>) {
    static_assert(
        std::is_lvalue_reference_v<T>,
        "the optimizer must outlive its handle: give it a name before "
        "prepare()");
    return Optimizer(std::move(result.optimizers[result.next_optimizer++]));
  } else if constexpr (SchedulerLike<Item>) {
    static_assert(
        std::is_lvalue_reference_v<T>,
        "the scheduler must outlive its handle: give it a name before "
        "prepare()");
    return Scheduler(std::move(result.schedulers[result.next_scheduler++]));
  } else if constexpr (ModuleHolder<Item>) {
    using M = typename Item::ContainedType;
    return Model<M>(item.ptr(), std::move(result.models[result.next_model++]));
  } else {
    static_assert(
        !std::is_lvalue_reference_v<T>,
        "move the loader in: prepare(std::move(loader))");
    if constexpr (LoaderLike<Item>) {
      Item loader(std::move(item));
      loader.attach(result.loader_context());
      return loader;
    } else {
      TorchLoader<typename Item::element_type> loader(std::move(item));
      loader.attach(result.loader_context());
      return loader;
    }
  }
}

/// The handles of all arguments, in their order: a tuple, or the only one.
template <class... Items>
auto make_handles(PrepareResult& result, Items&&... items) {
  if constexpr (sizeof...(Items) == 1) {
    return make_handle(result, std::forward<Items>(items)...);
  } else {
    // Braces keep the order of the items.
    return std::tuple<decltype(make_handle(
        result, std::forward<Items>(items)))...>{
        make_handle(result, std::forward<Items>(items))...};
  }
}

}  // namespace detail

}  // namespace accelerate
