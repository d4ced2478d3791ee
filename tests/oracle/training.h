#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include <torch/torch.h>

#include "oracle/oracle.h"

namespace accelerate::oracle {

/// The point from which a recorded training run resumes.
struct Resume {
  std::filesystem::path checkpoint;
  /// Number of micro-steps that each rank has already done.
  int micro_steps = 0;
};

/// Replays a training run from its beginning or, with a net of zeros, from a
/// checkpoint.
Json run_training_from(const Json& input, const std::optional<Resume>& resume);

}  // namespace accelerate::oracle
