#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <accelerate/parallel.h>
#include <accelerate/world.h>

#include "comm/transport/transport.h"
#include "params/parameter_table.h"

namespace accelerate::detail {

/// What buckets of a parameter's gradients depend on.
struct ParameterKind {
  at::ScalarType dtype;
  at::Device device;
  std::int64_t numel;
  bool operator==(const ParameterKind&) const = default;
};
[[nodiscard]] ParameterKind kind_of(const at::Tensor& parameter);

/// The parameters whose gradients a Reducer averages, and their names.
struct TrainableRows {
  std::vector<at::Tensor> tensors;
  std::vector<ParameterKind> kinds;
  std::unordered_map<std::size_t, std::string> names;
  std::unordered_map<const c10::TensorImpl*, std::string> names_by_tensor;
};

/// How long the reductions of one backward's buckets took.
struct ReductionTimes {
  std::int64_t hidden_ns = 0;   ///< while gradients were still computed
  std::int64_t exposed_ns = 0;  ///< after that
};

/// Returns the trained rows for which `is_chosen` returns true.
TrainableRows trainable_rows(
    const ParameterTable& table,
    bool (*is_chosen)(const Parameter& row));

/// c10d::Reducer with access to some of its protected state.
class BucketReducer : public c10d::Reducer {
 public:
  using c10d::Reducer::Reducer;

  /// Whether the backward since prepare_for_backward() reached a parameter.
  /// `is_first`: this is the first reduction, which with a static graph happens
  /// after the backward.
  [[nodiscard]] bool was_reached(bool is_first) const;
  /// True if that backward gave gradients to only some parameters.
  [[nodiscard]] bool is_unfinished() const { return require_finalize_; }
  /// Moves the buckets, with their contents, into memory in which `connection`
  /// reduces without copies, if it offers such memory. Called on all ranks
  /// after building the buckets, and after rebuilding them.
  void share_buckets(Connection& connection);
  void ignore_gradients() { expect_autograd_hooks_ = false; }
  /// Counts parameter number `index` as used in the backward that begins:
  /// LibTorch forgets parameters that only earlier micro-steps used.
  void mark_used(std::size_t index);

  /// Makes LibTorch measure times() in every backward, rather than only in
  /// some.
  void keep_times(bool keep);
  /// The times of the last backward; zero if it measured none.
  [[nodiscard]] ReductionTimes times() const;

  // With a static graph, the first reduction counts how often each parameter is
  // used. LibTorch also counts uses in backward passes that are not averaged,
  // before and after that reduction, and then waits for them forever.
  void restore_uses();
  void remember_uses() { uses_ = numGradHooksTriggeredMap_; }

 private:
  std::unordered_map<std::size_t, int> uses_;
};

/// Returns a reducer of the rows' gradients among the ranks of `group`. It
/// keeps a c10d::Logger, which LibTorch calls unchecked when the set of used
/// parameters changes.
std::shared_ptr<BucketReducer> make_reducer(
    const TrainableRows& rows,
    const Group& group,
    const ReplicateOptions& options);

/// Returns the names of the parameters that LibTorch's `message` lists, by
/// index, as having no gradient.
std::vector<std::string> names_without_gradient(
    const std::string& message,
    const TrainableRows& rows);

}  // namespace accelerate::detail
