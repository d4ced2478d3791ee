#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <accelerate/checkpoint.h>
#include <accelerate/detail/loader_slot.h>
#include <accelerate/log.h>
#include <accelerate/state_dict.h>

#include "checkpoint/components/component.h"
#include "checkpoint/components/models.h"
#include "params/shared_state.h"

namespace accelerate::detail {

/// How a checkpoint holds a state.
enum class StateUse {
  required,  ///< the same on all ranks
  /// The same on all ranks. A checkpoint may lack it, because its feature is
  /// newer or was not in use; an empty state is not saved.
  optional,
  /// One per rank, restored only if the number of ranks is the same as at the
  /// save.
  per_rank,
};

/// One state under one key: the step clock, and state that features register.
class StateComponent final : public CheckpointComponent {
 public:
  StateComponent(
      std::string key,
      AnyStateful object,
      StateUse use = StateUse::required)
      : key_(std::move(key)), object_(std::move(object)), use_(use) {}

  [[nodiscard]] std::string_view key() const override { return key_; }
  void collect(CheckpointContents& contents) const override;
  [[nodiscard]] std::vector<std::string> check(
      const CheckpointSource& source,
      const MatchRules& rules) override;
  void load(const CheckpointSource& source, const MatchRules& rules) override;

 private:
  std::string key_;
  AnyStateful object_;
  StateUse use_;
};

/// An ordered list of states, the same on all ranks: schedulers, and the user's
/// objects. `key` is a plural.
class StateListComponent final : public CheckpointComponent {
 public:
  StateListComponent(std::string key, std::vector<AnyStateful> objects)
      : key_(std::move(key)), objects_(std::move(objects)) {}

  [[nodiscard]] std::string_view key() const override { return key_; }
  void collect(CheckpointContents& contents) const override;
  [[nodiscard]] std::vector<std::string> check(
      const CheckpointSource& source,
      const MatchRules& rules) override;
  void load(const CheckpointSource& source, const MatchRules& rules) override;

 private:
  std::string key_;
  std::vector<AnyStateful> objects_;
};

/// The state of the loss scaler, if there is one.
class ScalerComponent final : public CheckpointComponent {
 public:
  explicit ScalerComponent(std::optional<AnyStateful> scaler)
      : scaler_(std::move(scaler)) {}

  [[nodiscard]] std::string_view key() const override { return "scaler"; }
  void collect(CheckpointContents& contents) const override;
  [[nodiscard]] std::vector<std::string> check(
      const CheckpointSource& source,
      const MatchRules& rules) override;
  void load(const CheckpointSource& source, const MatchRules& rules) override;

 private:
  std::optional<AnyStateful> scaler_;
};

/// Positions of prepared loaders in their passes. A loader whose ranks each
/// read their own data resumes at this rank's position, any other at rank 0's.
class LoaderComponent final : public CheckpointComponent {
 public:
  explicit LoaderComponent(std::vector<std::shared_ptr<LoaderSlot>> slots)
      : slots_(std::move(slots)) {}

  [[nodiscard]] std::string_view key() const override { return "loaders"; }
  void collect(CheckpointContents& contents) const override;
  [[nodiscard]] std::vector<std::string> check(
      const CheckpointSource& source,
      const MatchRules& rules) override;
  void load(const CheckpointSource& source, const MatchRules& rules) override;

 private:
  std::vector<std::shared_ptr<LoaderSlot>> slots_;
};

/// The state of one model's strategies, by the names of the strategies.
struct StrategyStates {
  PlacedModel model;
  std::function<StateDict()> state_dict;
  /// Returns the names whose state no strategy of the model accepts.
  std::function<std::vector<std::string>(const StateDict&)> load_state_dict;
  /// State that all ranks share; names begin with the strategy's name.
  std::function<SharedStates()> shared_states;
  std::function<void(const SavedSharedStates&)> load_shared_states;
};

/// The state that strategies carry from step to step: one dictionary per model
/// and rank, and tensors that all ranks share in a section "strategies" per
/// model. A strategy for which nothing was saved starts afresh; saved state
/// that no strategy accepts causes a warning.
class StrategyComponent final : public CheckpointComponent {
 public:
  StrategyComponent(
      std::vector<StrategyStates> models,
      WriterRule writes,
      Logger logger)
      : models_(std::move(models)),
        writes_(writes),
        logger_(std::move(logger)) {}

  [[nodiscard]] std::string_view key() const override { return "strategies"; }
  void collect(CheckpointContents& contents) const override;
  void load(const CheckpointSource& source, const MatchRules& rules) override;

 private:
  void load_shared(
      const StrategyStates& model,
      const StoredTensors& saved,
      std::size_t number) const;
  void warn_unclaimed(const std::string& name, std::size_t number) const;

  std::vector<StrategyStates> models_;
  WriterRule writes_;
  Logger logger_;
};

/// Returns a copy of the state of a device's default generator.
at::Tensor generator_state(at::Device device);
void set_generator_state(at::Device device, const at::Tensor& state);

/// The states of the default generators of the CPU and of `device`, by device.
AnyStateful random_states(at::Device device);

}  // namespace accelerate::detail
