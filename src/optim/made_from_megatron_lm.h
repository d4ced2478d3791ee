#pragma once

namespace accelerate::detail {

/// Base of schedules described by Megatron-LM's settings. They count optimizer
/// steps, not the steps of all processes together.
class MadeFromMegatronLM {
 public:
  virtual ~MadeFromMegatronLM() = default;
};

}  // namespace accelerate::detail
