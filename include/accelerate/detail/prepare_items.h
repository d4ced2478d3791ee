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
#include <accelerate/detail/dataset_concepts.h>
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
  /// Null if the program gave an empty holder or pointer.
  std::shared_ptr<torch::nn::Module> module;
  /// Null if the model has no options of its own.
  std::shared_ptr<const ModelOptions> options;
  /// Position among the arguments, from 1.
  int position = 0;
};

struct RequestedOptimizer {
  torch::optim::Optimizer* optimizer = nullptr;
  /// True if the handle will share ownership; otherwise the program must keep
  /// it.
  bool is_owned = false;
  /// Position among the arguments, from 1.
  int position = 0;
};

/// A loader of this library that was passed to prepare().
struct RequestedLoader {
  /// Number of samples; 0 with a batch sampler.
  std::int64_t batch_size = 0;
  /// Whether batch_size counts all ranks together. Unset: the accelerator's
  /// dataloader_config decides.
  std::optional<bool> splits_batches = std::nullopt;
};

/// The arguments of one prepare() call, not yet modified.
struct ACCELERATE_API PrepareRequest {
  void add(
      std::shared_ptr<torch::nn::Module> module,
      const ModelOptions* options);

  std::vector<RequestedModel> models;
  std::vector<RequestedOptimizer> optimizers;
  std::vector<SchedulerReference> schedulers;
  std::vector<RequestedLoader> loaders;
  /// Number of arguments collected so far.
  int num_items = 0;
};

/// The prepared objects, each kind in the order of the request.
struct PrepareResult {
  std::vector<std::shared_ptr<PreparedModel>> models;
  std::vector<std::shared_ptr<PreparedOptimizer>> optimizers;
  std::vector<std::shared_ptr<PreparedScheduler>> schedulers;
  std::size_t next_model = 0, next_optimizer = 0, next_scheduler = 0;
  /// Creates the context to which one data loader is attached; valid during
  /// prepare().
  std::function<LoaderContext()> loader_context;
};

/// State of Accelerator::init_model() while the model is constructed.
class ACCELERATE_API ModelConstruction {
 public:
  /// `only_on_rank_0`: only the first rank of the model, or of this pipeline
  /// stage, initializes parameters; the other ranks start with its values.
  ModelConstruction(const Mesh& mesh, bool only_on_rank_0);
  ~ModelConstruction();
  ModelConstruction(ModelConstruction&&) noexcept;
  /// Called once the modules are made. Collective if only rank 0 initialized
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
concept ModuleLike = std::is_convertible_v<T*, torch::nn::Module*>;

/// The type that an owning pointer points to; void for other types.
template <class T>
struct PointedTo {
  using Type = void;
};
template <class T, class D>
struct PointedTo<std::unique_ptr<T, D>> {
  using Type = T;
};
template <class T>
struct PointedTo<std::shared_ptr<T>> {
  using Type = T;
};
template <class T>
struct PointedTo<T*> {
  using Type = T;
};
template <class T>
inline constexpr bool kIsUniquePointer = false;
template <class T, class D>
inline constexpr bool kIsUniquePointer<std::unique_ptr<T, D>> = true;

/// A unique_ptr or shared_ptr to an optimizer or schedule.
template <class T>
concept OwnedOptimizer = !std::is_pointer_v<T> &&
    OptimizerLike<std::remove_reference_t<typename PointedTo<T>::Type>>;
template <class T>
concept OwnedScheduler = !std::is_pointer_v<T> &&
    SchedulerLike<std::remove_reference_t<typename PointedTo<T>::Type>>;
/// A unique_ptr to a `torch::data` loader.
template <class T>
concept OwnedLoader =
    kIsUniquePointer<T> && requires { typename PointedTo<T>::Type::BatchType; };

template <class T>
concept PreparedHandle =
    kIsModel<T> || std::is_same_v<T, Optimizer> || std::is_same_v<T, Scheduler>;
template <class T>
concept DatasetLike = BatchDataset<T> || RandomDataset<T> || StreamDataset<T> ||
    requires(T& dataset) { dataset.get(std::int64_t{}); };

/// Whether prepare() accepts an argument of type T, which is a reference for an
/// lvalue. If not, compiling fails with a message that says what to do.
template <class T>
consteval bool must_be_preparable() {
  using Item = std::remove_cvref_t<T>;
  constexpr bool is_named = std::is_lvalue_reference_v<T>;
  if constexpr (PreparedHandle<Item>) {
    static_assert(
        kNever<T>,
        "prepare() was given a handle that it returned before: use the handle "
        "as it is");
    return false;
  } else if constexpr (OptimizerLike<Item> || SchedulerLike<Item>) {
    static_assert(
        is_named || SchedulerLike<Item>,
        "the optimizer must outlive its handle: give it a name before "
        "prepare(), or move in a std::unique_ptr to it");
    static_assert(
        is_named || OptimizerLike<Item>,
        "the scheduler must outlive its handle: give it a name before "
        "prepare(), or move in a std::unique_ptr to it");
    return is_named;
  } else if constexpr (OwnedOptimizer<Item> || OwnedScheduler<Item>) {
    static_assert(
        !is_named || !kIsUniquePointer<Item>,
        "move the pointer in, prepare(std::move(optimizer)), or keep it and "
        "give prepare() the object, prepare(*optimizer)");
    return !is_named || !kIsUniquePointer<Item>;
  } else if constexpr (LoaderLike<Item> || OwnedLoader<Item>) {
    static_assert(!is_named, "move the loader in: prepare(std::move(loader))");
    return !is_named;
  } else if constexpr (
      ModuleLike<Item> ||
      (!IsModulePointer<Item>::value &&
       ModuleLike<typename PointedTo<Item>::Type>)) {
    static_assert(
        kNever<T>,
        "prepare() shares the module with the program: give it a module holder "
        "(TORCH_MODULE), or a std::shared_ptr made by std::make_shared<Net>()");
    return false;
  } else if constexpr (std::is_same_v<Item, at::Tensor>) {
    static_assert(
        kNever<T>,
        "prepare() does not take tensors: move a tensor with "
        "tensor.to(accelerator.device())");
    return false;
  } else if constexpr (DatasetLike<Item>) {
    static_assert(
        kNever<T>,
        "prepare() takes loaders, not datasets: "
        "prepare(accelerate::DataLoader(dataset, {.batch_size = 8}))");
    return false;
  } else {
    constexpr bool is_module = IsModulePointer<Item>::value ||
        IsModuleWithOptions<Item>::value || ModuleHolder<Item>;
    static_assert(
        is_module,
        "prepare() takes modules (holders, shared_ptr, with_options()), "
        "optimizers, LRSchedulers and data loaders");
    return is_module;
  }
}

/// Throws ConfigError saying that argument `position` of prepare(), from 1, is
/// an empty pointer. `kind` is "an optimizer", for example.
[[noreturn]] ACCELERATE_API void throw_empty_pointer(
    const char* kind,
    int position);
/// Keeps what the user's pointer owns alive as long as the object is prepared.
ACCELERATE_API void keep_alive(
    PreparedOptimizer& prepared,
    std::shared_ptr<void> owner);
ACCELERATE_API void keep_alive(
    PreparedScheduler& prepared,
    std::shared_ptr<void> owner);

/// Arguments of prepare_data_loader() and prepare_model().
template <class T>
concept PreparableLoader = LoaderLike<T> || OwnedLoader<T>;
template <class T>
concept PreparableModule = ModuleHolder<T> || IsModulePointer<T>::value;

/// Adds one argument of prepare() to the request.
template <class T>
void collect_item(
    PrepareRequest& request,
    T& item,
    const ModelOptions* options = nullptr) {
  using Item = std::remove_cv_t<T>;
  if constexpr (IsModuleWithOptions<Item>::value) {
    // The recursive call counts the argument.
    collect_item(request, item.module, &item.options);
    return;
  }
  ++request.num_items;
  if constexpr (IsModulePointer<Item>::value) {
    request.add(item, options);
  } else if constexpr (OwnedOptimizer<Item>) {
    if (item == nullptr) throw_empty_pointer("an optimizer", request.num_items);
    request.optimizers.push_back(
        {item.get(), /*is_owned=*/true, request.num_items});
  } else if constexpr (OwnedScheduler<Item>) {
    if (item == nullptr) throw_empty_pointer("a scheduler", request.num_items);
    request.schedulers.emplace_back(item.get());
  } else if constexpr (OptimizerLike<Item>) {
    request.optimizers.push_back(
        {&item, /*is_owned=*/false, request.num_items});
  } else if constexpr (SchedulerLike<Item>) {
    request.schedulers.emplace_back(&item);
  } else if constexpr (ModuleHolder<Item>) {
    // ptr() of an empty holder fails a LibTorch assertion.
    if (item.is_empty()) {
      request.add(nullptr, options);
    } else {
      request.add(item.ptr(), options);
    }
  } else if constexpr (requires {
                         item.total_batch_size();
                         item.options().split_batches;
                       }) {
    request.loaders.push_back(
        {item.total_batch_size(), item.options().split_batches});
  }
}

inline Optimizer next_optimizer(PrepareResult& result) {
  return Optimizer(std::move(result.optimizers[result.next_optimizer++]));
}
inline Scheduler next_scheduler(PrepareResult& result) {
  return Scheduler(std::move(result.schedulers[result.next_scheduler++]));
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
  } else if constexpr (OwnedOptimizer<Item>) {
    keep_alive(
        *result.optimizers[result.next_optimizer],
        std::shared_ptr<typename PointedTo<Item>::Type>(std::forward<T>(item)));
    return next_optimizer(result);
  } else if constexpr (OwnedScheduler<Item>) {
    keep_alive(
        *result.schedulers[result.next_scheduler],
        std::shared_ptr<typename PointedTo<Item>::Type>(std::forward<T>(item)));
    return next_scheduler(result);
  } else if constexpr (OptimizerLike<Item>) {
    return next_optimizer(result);
  } else if constexpr (SchedulerLike<Item>) {
    return next_scheduler(result);
  } else if constexpr (ModuleHolder<Item>) {
    using M = typename Item::ContainedType;
    return Model<M>(item.ptr(), std::move(result.models[result.next_model++]));
  } else if constexpr (LoaderLike<Item>) {
    Item loader(std::move(item));
    loader.attach(result.loader_context());
    return loader;
  } else {
    TorchLoader<typename Item::element_type> loader(std::move(item));
    loader.attach(result.loader_context());
    return loader;
  }
}

/// The handles of all arguments, in order: a tuple, or the only one.
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
