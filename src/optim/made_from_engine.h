#pragma once

namespace accelerate::detail {

/// Base of optimizers and schedules described by a DeepSpeed configuration,
/// which may not be replaced by others.
class MadeFromDeepSpeed {
 public:
  virtual ~MadeFromDeepSpeed() = default;
};

template <class Base>
class FromDeepSpeed final : public Base, public MadeFromDeepSpeed {
 public:
  using Base::Base;
};

/// Base of schedules described by Megatron-LM's settings. They count optimizer
/// steps, not the steps of all processes together.
class MadeFromMegatronLM {
 public:
  virtual ~MadeFromMegatronLM() = default;
};

}  // namespace accelerate::detail
