#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/nested_parts.h>
#include <accelerate/export.h>
#include <accelerate/state_dict.h>

/// Batches whose type the code that makes them does not know.
namespace accelerate::detail {

class BatchFetcher;
class Worker;

/// The samples of a batch.
struct BatchIndices {
  /// Indices into the dataset.
  std::vector<std::int64_t> indices;
  /// The seed of the pass, and the position of the first sample in the order:
  /// random numbers depend on these.
  std::uint64_t pass_seed = 0;
  std::int64_t first_position = 0;
  /// Number of real samples in a padded round; otherwise 0.
  std::int64_t remainder = 0;
};

/// A batch from when it is claimed until the loop asks for the next one.
class ACCELERATE_API LoadedBatch {
 public:
  using TensorFunction = std::function<void(at::Tensor&)>;

  LoadedBatch();
  LoadedBatch(const LoadedBatch&) = delete;
  LoadedBatch& operator=(const LoadedBatch&) = delete;
  virtual ~LoadedBatch();

  /// Reads and collates the samples, and begins to copy the batch to the
  /// device. Called once, by any thread.
  void run(Worker& worker);

  /// The batch itself.
  [[nodiscard]] virtual void* value() = 0;
  /// Calls `function` with each tensor of the batch.
  virtual void visit(const TensorFunction& function) = 0;
  // Only for batches that can be dispatched.
  virtual NestedParts parts() = 0;
  /// Another batch with the same value.
  [[nodiscard]] virtual std::unique_ptr<LoadedBatch> copy() const = 0;
  /// Makes the batch a default-constructed one whose containers have the sizes
  /// and keys of NestedParts::structure.
  virtual void restore(const std::vector<std::string>& structure) = 0;

  /// Unset once the batch is handed out.
  std::shared_ptr<BatchFetcher> fetcher = nullptr;
  /// Number of the batch on this rank in this pass.
  std::int64_t number = 0;
  /// True for the last batch of the pass.
  bool is_last = false;
  BatchIndices read = {};
  /// Streams only: the number of samples that were read.
  std::int64_t num_samples = 0;
  /// The stream's own state after this batch's last sample.
  std::optional<StateDict> stream_state = std::nullopt;
  /// The copy to the device that is in progress.
  std::shared_ptr<void> sent = nullptr;
  double read_seconds = 0;
  double collate_seconds = 0;
  double transfer_seconds = 0;
};

template <class T>
concept ObjectList = kIs<T, std::vector> &&
    !holds_tensors<typename T::value_type>() && IsTransferable<T>::value;
/// A batch that can be sliced by rows and sent.
template <class T>
concept Dispatchable =
    std::is_default_constructible_v<T> && (ObjectList<T> || NestedTensors<T>);

/// Holds the batch itself.
template <class T, bool can_dispatch = Dispatchable<T>>
class HeldBatch : public LoadedBatch {
 public:
  using Batch = T;

  [[nodiscard]] void* value() override { return &*batch; }
  void visit(const TensorFunction& function) override {
    if constexpr (NestedTensors<Batch>)
      visit_tensors(*batch, TensorVisitor{std::cref(function)});
  }
  NestedParts parts() override {
    if constexpr (can_dispatch) return parts_of(*batch);
    return {};
  }
  [[nodiscard]] std::unique_ptr<LoadedBatch> copy() const override {
    if constexpr (can_dispatch) {
      auto made = std::make_unique<HeldBatch>();
      made->batch = batch;
      return made;
    }
    return nullptr;
  }
  void restore(const std::vector<std::string>& structure) override {
    if constexpr (can_dispatch)
      visit_tensors(batch.emplace(), StructureReader(structure));
  }

  std::optional<Batch> batch = std::nullopt;
};

}  // namespace accelerate::detail
