#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <accelerate/export.h>
#include <accelerate/fully_sharded.h>

namespace accelerate {

/// When what backward computed again is compared with the first time.
enum class CompareRecomputed {
  never,
  /// The first time that the same operators ran in the same order.
  first,
  always,
};

struct CheckpointOptions {
  /// Keep what the function took from outside in host memory until backward.
  /// Tensors of the CPU are there already.
  bool offload_inputs = false;
  /// Compares sums over tensors: memory that was written by other means than
  /// LibTorch's operators cannot be computed again, and becomes an error that
  /// names the operator.
  CompareRecomputed compare = CompareRecomputed::first;

  bool operator==(const CheckpointOptions&) const = default;
};

/// Activation checkpointing of a model's modules, whatever their classes:
/// which are chosen as in FullyShardedDataParallelOptions. From the first use
/// of a chosen module's parameters to the first use of another's, operators
/// are noted and run again in backward, and nothing that they save for it is
/// kept in between. (Chen et al., "Training Deep Nets with Sublinear Memory
/// Cost", 2016.)
struct ActivationCheckpointingOptions {
  /// Unset: the elements of the outermost Sequentials and ModuleLists.
  std::optional<AutoWrapPolicy> auto_wrap_policy = std::nullopt;
  /// In place of a policy: whether the module of this name is chosen.
  std::function<bool(const std::string& name, const torch::nn::Module& module)>
      custom_auto_wrap_policy = nullptr;
  /// Names of classes, for transformer_based_wrap.
  std::vector<std::string> transformer_cls_names_to_wrap = {};
  /// For size_based_wrap.
  std::int64_t min_num_params = 0;
  CheckpointOptions options = CheckpointOptions();
};

namespace detail {
class Recording;

/// On this thread, until it is destroyed.
class ACCELERATE_API CheckpointScope {
 public:
  explicit CheckpointScope(const CheckpointOptions& options);
  ~CheckpointScope();
  CheckpointScope(const CheckpointScope&) = delete;
  CheckpointScope& operator=(const CheckpointScope&) = delete;

 private:
  std::unique_ptr<Recording> recording_;
};

class HostKeeper;
}  // namespace detail

/// Runs `function` and returns what it returns; what its operators save for
/// backward is not kept, but computed again when backward first needs it.
///
/// `function` itself runs once: the operators that it called are noted and
/// called again, with the same random states, autocast and gradient modes, up
/// to the last that saved something. So its side effects happen once, running
/// statistics are updated once, and results are those without checkpointing,
/// to the last bit where operators are deterministic. Kernels that write to
/// memory of tensors without an operator of their own are found by comparing,
/// see CheckpointOptions, and must be registered with TORCH_LIBRARY.
///
/// Inside another checkpoint() it does nothing more. With gradients disabled
/// nothing is noted. One thread at a time may run backward through it.
///
/// Backward throws Error, naming the operator, if a tensor from outside was
/// changed in place since, or if computing again gave something else.
template <class Function>
std::invoke_result_t<Function> checkpoint(
    Function&& function,
    const CheckpointOptions& options = CheckpointOptions()) {
  const detail::CheckpointScope scope(options);
  return std::invoke(std::forward<Function>(function));
}

struct SaveOnCpuOptions {
  /// Page-locked host memory: copies run beside computation.
  bool pin_memory = true;
  /// Smaller tensors stay where they are.
  std::int64_t min_bytes = 1024;
};

/// While it lives, what operators of this thread save for backward waits in
/// host memory, and comes back to its device when backward needs it.
/// Parameters stay where they are, and so does what is on the CPU. Destroyed
/// on the thread that made it, the innermost first.
class ACCELERATE_API SaveOnCpu {
 public:
  explicit SaveOnCpu(const SaveOnCpuOptions& options = SaveOnCpuOptions());
  ~SaveOnCpu();
  SaveOnCpu(const SaveOnCpu&) = delete;
  SaveOnCpu& operator=(const SaveOnCpu&) = delete;

 private:
  std::unique_ptr<detail::HostKeeper> keeper_;
};

}  // namespace accelerate
