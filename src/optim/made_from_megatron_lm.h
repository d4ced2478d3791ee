#pragma once

namespace accelerate::detail {

/// Base of schedules that Megatron-LM's settings describe. They count optimizer
/// steps, not those of all processes together.
class MadeFromMegatronLM {
 public:
  virtual ~MadeFromMegatronLM() = default;
};

}  // namespace accelerate::detail
