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
#include "gate/placeholder.h"

namespace accelerate::detail {

/// Segments of a forward pass: a new one begins where an operator takes a
/// tensor of another segment. Tensors of `kUnrecorded` end a segment without
/// beginning one.
struct Segments {
  static constexpr std::size_t kUnrecorded = 0;

  std::unordered_map<const c10::TensorImpl*, std::size_t> segment_of;
  /// Names, indexed by segment.
  std::vector<std::string> names{""};
};

/// While alive, records this thread's operators on tapes. Does nothing inside
/// another recording, or with gradients disabled. Must be destroyed on the
/// thread that made it, the innermost first.
class Recording final : public SavedTensorKeeper, PlaceholderListener {
 public:
  /// Records one tape per segment. `segments` must outlive it.
  Recording(
      const Segments& segments,
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
  void enter(c10::ArrayRef<c10::IValue> arguments);
  void became(const at::Tensor& placeholder, const at::Tensor& value) override;

  const Segments* segments_ = nullptr;
  CheckpointOptions options_;
  std::shared_ptr<ComparedOperators> compared_;
  std::shared_ptr<Tape> tape_;
  std::size_t segment_ = Segments::kUnrecorded;
  Recording* enclosing_ = nullptr;
  std::optional<c10::impl::IncludeDispatchKeyGuard> include_;
  std::optional<SavedTensorScope> scope_;
};

}  // namespace accelerate::detail
