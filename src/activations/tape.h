#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <accelerate/activation_checkpointing.h>

#include "activations/autocast_state.h"
#include "activations/fingerprint.h"
#include "activations/saved_tensors.h"
#include "gate/mode_keys.h"

namespace accelerate::detail {

/// The operators that have been compared, each identified by the history of
/// operators up to it.
class ComparedOperators {
 public:
  [[nodiscard]] bool has(std::uint64_t history) const {
    const std::lock_guard lock(mutex_);
    return histories_.contains(history);
  }
  void add(std::uint64_t history) {
    const std::lock_guard lock(mutex_);
    histories_.insert(history);
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_set<std::uint64_t> histories_;
};

/// The operators of a segment of a forward pass, with the tensors that they
/// took from outside the segment. Tensors saved for backward are not kept; when
/// backward needs the first of them, the operators are recomputed, up to the
/// last one whose saved tensors are needed.
///
/// Results are those of the first run: arguments, random states, autocast and
/// gradient modes are restored; tensors from outside that the segment changes
/// are copied beforehand, and recomputation changes the copy. As in autograd,
/// it is an error if other code has changed a tensor from outside since.
///
/// Recorded by one thread; replayed by any, one at a time.
class Tape : public std::enable_shared_from_this<Tape> {
 public:
  /// `name` is used in messages.
  Tape(
      std::string name,
      const CheckpointOptions& options,
      std::shared_ptr<ComparedOperators> compared);
  ~Tape();

  /// Called when an operator is about to run with the arguments on top of
  /// `stack`. Returns false if it leaves no trace and is not recorded. If true,
  /// end() or cancel() must follow.
  bool begin(
      const c10::OperatorHandle& operation,
      const torch::jit::Stack& stack);
  void end(const torch::jit::Stack& stack);
  void cancel();
  /// Called when a tensor of the program has become `made`, if an operator made
  /// that.
  void rename(const at::Tensor& made, const at::Tensor& tensor);
  /// Ends recording.
  void close();

  /// Called by autograd for each tensor that it saves.
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks();

 private:
  struct Place;
  struct Input;
  struct Output;
  struct Saved;
  struct Operator;
  struct Outside;
  struct Replay;
  struct Known;
  class Hooks;
  class Collector;

  Place place_of(const at::Tensor& tensor);
  void record_input(
      Operator& entry,
      const at::Tensor& tensor,
      std::size_t argument,
      std::optional<std::size_t> item);
  void record_output(
      Operator& entry,
      const at::Tensor& tensor,
      std::size_t value,
      std::optional<std::size_t> item);
  void keep_before_change(const at::Tensor& tensor);
  void offload_outside();
  void find_copies();
  void find_last_uses();

  /// Called by the hooks.
  Place pack(const at::Tensor& tensor);
  at::Tensor unpack(const Place& place);
  void forget(const Place& place);

  void replay();
  /// Index after the last operator whose tensors a hook wants.
  [[nodiscard]] std::size_t end_of_wanted() const;
  [[nodiscard]] torch::jit::Stack arguments_again(
      const Operator& entry,
      Replay& replay) const;
  [[nodiscard]] at::Tensor input_again(const Input& input, Replay& replay)
      const;
  /// Replaces the arguments on `stack` with the operator's results.
  void run_again(
      Operator& entry,
      torch::jit::Stack& stack,
      Collector& collector) const;
  void keep_made(
      const Operator& entry,
      const torch::jit::Stack& stack,
      Replay& replay);
  [[nodiscard]] at::Tensor outside_again(
      const Outside& outside,
      std::vector<at::Tensor>& copies) const;
  Saved& saved_at(const Place& place);
  void compare(const Operator& entry) const;

  std::string name_;
  CheckpointOptions options_;
  std::shared_ptr<ComparedOperators> compared_;
  std::recursive_mutex mutex_;
  std::vector<Operator> operators_;
  std::vector<Outside> outside_;
  /// Flat copies of memory from outside, made before the segment changed it.
  std::vector<at::Tensor> copies_;
  std::size_t num_made_ = 0;
  std::size_t num_wanted_ = 0;
  /// Tensors made by the segment that the user's own nodes saved, outside any
  /// operator.
  std::unordered_map<std::size_t, Saved> saved_made_;
  bool is_in_operator_ = false;
  bool is_closed_ = false;
  std::uint64_t history_ = 0;

  // Used while recording. Weak references keep addresses from being reused.
  std::unordered_map<const c10::TensorImpl*, Known> known_;
  /// What operators saved of a storage. The weak reference keeps the storage's
  /// address from being reused.
  struct Savings {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::vector<Place> places;
  };
  std::unordered_map<const c10::StorageImpl*, Savings> savings_of_;
  std::unordered_map<const c10::StorageImpl*, std::optional<std::size_t>>
      outside_storages_;
};

}  // namespace accelerate::detail
