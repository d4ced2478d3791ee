#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <accelerate/data_loader.h>
#include <accelerate/detail/dataset_concepts.h>
#include <accelerate/detail/handles.h>
#include <accelerate/detail/standard_types.h>
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

/// The arguments of one prepare() call, not yet modified. Each function adds
/// one argument.
struct ACCELERATE_API PrepareRequest {
  void add_model(
      std::shared_ptr<torch::nn::Module> module,
      const ModelOptions* options);
  /// Throw ConfigError for an empty pointer.
  void add_optimizer(torch::optim::Optimizer* optimizer, bool is_owned);
  template <class Schedule>
  void add_scheduler(Schedule* schedule) {
    add_item(schedule, "a scheduler");
    schedulers.emplace_back(schedule);
  }
  void add_loader(std::int64_t batch_size, std::optional<bool> splits_batches);
  /// Counts an argument that is prepared after the others.
  void add_item() { ++num_items; }

  std::vector<RequestedModel> models;
  std::vector<RequestedOptimizer> optimizers;
  std::vector<SchedulerReference> schedulers;
  std::vector<RequestedLoader> loaders;
  /// Number of arguments collected so far.
  int num_items = 0;

 private:
  void add_item(const void* object, const char* kind);
};

/// The prepared objects, each kind in the order of the request.
struct ACCELERATE_API PrepareResult {
  /// The next prepared object. What `owner` owns lives as long as the object is
  /// prepared.
  std::shared_ptr<PreparedModel> take_model();
  Optimizer take_optimizer(std::shared_ptr<void> owner = nullptr);
  Scheduler take_scheduler(std::shared_ptr<void> owner = nullptr);

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
  OwnedPtr<Scope> scope_;
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

// The type that a pointer points to; void for other types. Only the types of
// these are used.
template <class T, class D>
std::type_identity<T> pointed_to(const std::unique_ptr<T, D>*);
template <class T>
std::type_identity<T> pointed_to(const std::shared_ptr<T>*);
template <class T>
std::type_identity<T> pointed_to(T* const*);
std::type_identity<void> pointed_to(...);
template <class T>
using PointedTo =
    typename decltype(pointed_to(static_cast<const T*>(nullptr)))::type;

/// A unique_ptr or shared_ptr to an optimizer or schedule.
template <class T>
concept OwnedOptimizer = !std::is_pointer_v<T> && OptimizerLike<PointedTo<T>>;
template <class T>
concept OwnedScheduler = !std::is_pointer_v<T> && SchedulerLike<PointedTo<T>>;
/// A unique_ptr to a `torch::data` loader.
template <class T>
concept OwnedLoader =
    kIs<T, std::unique_ptr> && requires { typename PointedTo<T>::BatchType; };

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
  constexpr bool is_handle = PreparedHandle<Item>;
  static_assert(
      !is_handle,
      "prepare() was given a handle that it returned before: "
      "use the handle as it is");
  constexpr bool is_temporary_optimizer = !is_named && OptimizerLike<Item>;
  static_assert(
      !is_temporary_optimizer,
      "the optimizer must outlive its handle: give it a name before prepare(), "
      "or move in a std::unique_ptr to it");
  constexpr bool is_temporary_scheduler = !is_named && SchedulerLike<Item>;
  static_assert(
      !is_temporary_scheduler,
      "the scheduler must outlive its handle: give it a name before prepare(), "
      "or move in a std::unique_ptr to it");
  constexpr bool is_owned = OwnedOptimizer<Item> || OwnedScheduler<Item>;
  constexpr bool keeps_pointer =
      is_named && is_owned && kIs<Item, std::unique_ptr>;
  static_assert(
      !keeps_pointer,
      "move the pointer in, prepare(std::move(optimizer)), or keep it and give "
      "prepare() the object, prepare(*optimizer)");
  constexpr bool is_loader = LoaderLike<Item> || OwnedLoader<Item>;
  static_assert(
      !is_named || !is_loader,
      "move the loader in: prepare(std::move(loader))");
  constexpr bool is_bare_module = ModuleLike<Item> ||
      (!IsModulePointer<Item>::value && ModuleLike<PointedTo<Item>>);
  static_assert(
      !is_bare_module,
      "prepare() shares the module with the program: give it a module holder "
      "(TORCH_MODULE), or a std::shared_ptr made by std::make_shared<Net>()");
  constexpr bool is_tensor = std::is_same_v<Item, at::Tensor>;
  static_assert(
      !is_tensor,
      "prepare() does not take tensors: move a tensor with "
      "tensor.to(accelerator.device())");
  constexpr bool is_known = is_handle || OptimizerLike<Item> ||
      SchedulerLike<Item> || is_owned || is_loader || is_bare_module ||
      is_tensor;
  constexpr bool is_dataset = !is_known && DatasetLike<Item>;
  static_assert(
      !is_dataset,
      "prepare() takes loaders, not datasets: "
      "prepare(accelerate::DataLoader(dataset, {.batch_size = 8}))");
  constexpr bool can = is_known || is_dataset || IsModulePointer<Item>::value ||
      IsModuleWithOptions<Item>::value || ModuleHolder<Item>;
  static_assert(
      can,
      "prepare() takes modules (holders, shared_ptr, with_options()), "
      "optimizers, LRSchedulers and data loaders");
  return can && !is_handle && !is_temporary_optimizer &&
      !is_temporary_scheduler && !keeps_pointer && !(is_named && is_loader) &&
      !is_bare_module && !is_tensor && !is_dataset;
}

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
    collect_item(request, item.module, &item.options);
  } else if constexpr (IsModulePointer<Item>::value) {
    request.add_model(item, options);
  } else if constexpr (OwnedOptimizer<Item>) {
    request.add_optimizer(item.get(), /*is_owned=*/true);
  } else if constexpr (OwnedScheduler<Item>) {
    request.add_scheduler(item.get());
  } else if constexpr (OptimizerLike<Item>) {
    request.add_optimizer(&item, /*is_owned=*/false);
  } else if constexpr (SchedulerLike<Item>) {
    request.add_scheduler(&item);
  } else if constexpr (ModuleHolder<Item>) {
    // ptr() of an empty holder fails a LibTorch assertion.
    request.add_model(item.is_empty() ? nullptr : item.ptr(), options);
  } else if constexpr (requires {
                         item.total_batch_size();
                         item.options().split_batches;
                       }) {
    request.add_loader(item.total_batch_size(), item.options().split_batches);
  } else {
    request.add_item();
  }
}

/// The handle of one argument.
template <class T>
auto make_handle(PrepareResult& result, T&& item) {
  using Item = std::remove_cvref_t<T>;
  if constexpr (IsModulePointer<Item>::value) {
    return Model<typename Item::element_type>(item, result.take_model());
  } else if constexpr (IsModuleWithOptions<Item>::value) {
    return make_handle(result, item.module);
  } else if constexpr (OwnedOptimizer<Item>) {
    return result.take_optimizer(std::forward<T>(item));
  } else if constexpr (OwnedScheduler<Item>) {
    return result.take_scheduler(std::forward<T>(item));
  } else if constexpr (OptimizerLike<Item>) {
    return result.take_optimizer();
  } else if constexpr (SchedulerLike<Item>) {
    return result.take_scheduler();
  } else if constexpr (ModuleHolder<Item>) {
    return Model<typename Item::ContainedType>(item.ptr(), result.take_model());
  } else if constexpr (LoaderLike<Item>) {
    Item loader(std::move(item));
    loader.attach(result.loader_context());
    return loader;
  } else {
    return make_handle(
        result, TorchLoader<typename Item::element_type>(std::move(item)));
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
