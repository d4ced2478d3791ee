#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>
#include <accelerate/fully_sharded.h>

namespace accelerate {

/// When recomputed results are compared with the original ones.
enum class CompareRecomputed {
  /// Not at all: differences stay unnoticed.
  never,
  /// The first time that the same operators run in the same order.
  first,
  /// Every time, which costs a pass over each result.
  always,
};

struct CheckpointOptions {
  /// Keep the function's inputs in pinned host memory until backward, at the
  /// cost of a copy in each direction, if they are too much for the device. CPU
  /// tensors are there already.
  bool offload_inputs = false;
  /// Compares sums over tensors: memory written by anything but LibTorch's
  /// operators cannot be recomputed, and causes an error that names the
  /// operator. Whenever it compares, the host waits for the device.
  CompareRecomputed compare = CompareRecomputed::first;

  bool operator==(const CheckpointOptions&) const = default;
};

/// Activation checkpointing of a model's modules, whatever their classes; they
/// are chosen as in FullyShardedDataParallelOptions. From the first use of a
/// chosen module's parameters to the first use of another's, operators are
/// recorded, and recomputed in backward; nothing that they save for backward is
/// kept until then. (Chen et al., "Training Deep Nets with Sublinear Memory
/// Cost", 2016.)
struct ActivationCheckpointingOptions {
  /// Unset: the elements of the outermost Sequentials and ModuleLists.
  std::optional<AutoWrapPolicy> auto_wrap_policy = std::nullopt;
  /// Replaces a policy: returns whether the module of this name is chosen.
  std::function<bool(const std::string& name, const torch::nn::Module& module)>
      custom_auto_wrap_policy = nullptr;
  /// Class names, for transformer_based_wrap.
  std::vector<std::string> transformer_cls_names_to_wrap = {};
  /// Minimum number of parameters, for size_based_wrap. 0 chooses nothing.
  std::int64_t min_num_params = 0;
  /// How the chosen modules are recomputed.
  CheckpointOptions options = {};
};

namespace detail {
class Recording;

/// Checkpoints what this thread runs until it is destroyed.
class ACCELERATE_API CheckpointScope {
 public:
  explicit CheckpointScope(const CheckpointOptions& options);
  ~CheckpointScope();
  CheckpointScope(const CheckpointScope&) = delete;
  CheckpointScope& operator=(const CheckpointScope&) = delete;

 private:
  OwnedPtr<Recording> recording_;
};

class HostKeeper;
}  // namespace detail

/// Runs `function` and returns its result; what its operators save for backward
/// is not kept, but recomputed when backward first needs it.
///
/// `function` itself runs once: the operators that it called are recorded and
/// called again, with the same random states, autocast and gradient modes, up
/// to the last that saved something. So side effects and updates of running
/// statistics happen once, and results are those without checkpointing, bit for
/// bit where operators are deterministic. Kernels that write to tensors' memory
/// outside of an operator are found by comparing (see CheckpointOptions), and
/// must be registered with TORCH_LIBRARY.
///
/// Inside another checkpoint() it has no further effect. With gradients
/// disabled, nothing is recorded. Only one thread at a time can run backward
/// through it.
///
/// Backward throws Error, naming the operator, if a tensor from outside was
/// changed in place since, or if recomputing gave a different result.
template <class Function>
std::invoke_result_t<Function> checkpoint(
    Function&& function,
    const CheckpointOptions& options = {}) {
  const detail::CheckpointScope scope(options);
  return std::invoke(std::forward<Function>(function));
}

struct SaveOnCpuOptions {
  /// Use pinned memory, so that the host does not wait for copies. False: if
  /// the machine is short of memory, since pinned memory is never paged out.
  bool pin_memory = true;
  /// Tensors of fewer bytes stay on the device. Raise it if a model saves many
  /// small tensors: each that moves costs two copies.
  std::int64_t min_bytes = 1024;
};

/// While it lives, what operators on this thread save for backward is kept in
/// host memory, and returns to its device when backward needs it. Parameters
/// and CPU tensors stay where they are. Must be destroyed on the thread that
/// made it, innermost first.
class ACCELERATE_API SaveOnCpu {
 public:
  explicit SaveOnCpu(const SaveOnCpuOptions& options = SaveOnCpuOptions());
  ~SaveOnCpu();
  SaveOnCpu(const SaveOnCpu&) = delete;
  SaveOnCpu& operator=(const SaveOnCpu&) = delete;

 private:
  detail::OwnedPtr<detail::HostKeeper> keeper_;
};

}  // namespace accelerate
