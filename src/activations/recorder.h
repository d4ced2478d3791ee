#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <accelerate/activation_checkpointing.h>

#include "activations/saved_tensors.h"
#include "activations/tape.h"

namespace accelerate::detail {

/// Segments of a forward pass: one begins where an operator takes a tensor of
/// another region. Tensors of `kUnrecorded` end a segment and begin none.
struct Regions {
  static constexpr std::size_t kUnrecorded = 0;

  std::unordered_map<const c10::TensorImpl*, std::size_t> region_of;
  /// Names, indexed by region.
  std::vector<std::string> names{""};
};

/// While it lives, operators of this thread are recorded on tapes. Inside
/// another recording, and with gradients disabled, it does nothing. Destroyed
/// on the thread that made it, the innermost first.
class Recording final : public SavedTensorKeeper {
 public:
  /// Records one tape per segment. `regions` must outlive it.
  Recording(
      const Regions& regions,
      const CheckpointOptions& options,
      std::shared_ptr<ComparedOperators> compared);
  /// Records one tape until the end.
  Recording(
      std::string name,
      const CheckpointOptions& options,
      std::shared_ptr<ComparedOperators> compared);
  ~Recording() override;

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;

  /// Called by the dispatch key's fallback.
  void run(
      const c10::OperatorHandle& operation,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack);

 private:
  void begin();
  void enter(const torch::jit::Stack& stack, std::size_t num_arguments);

  const Regions* regions_ = nullptr;
  CheckpointOptions options_;
  std::shared_ptr<ComparedOperators> compared_;
  std::shared_ptr<Tape> tape_;
  std::size_t region_ = Regions::kUnrecorded;
  Recording* enclosing_ = nullptr;
  std::optional<c10::impl::IncludeDispatchKeyGuard> include_;
  std::optional<SavedTensorScope> scope_;
};

}  // namespace accelerate::detail
