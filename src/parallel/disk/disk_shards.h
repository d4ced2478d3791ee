#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "engines/training_request.h"
#include "gate/disk/disk_tensors.h"
#include "parallel/strategy.h"
#include "params/parameter_table.h"

namespace accelerate::detail {

/// What a model's shards, their gradients and their optimizer state do between
/// uses if they lie in files: shards of parameters, which gathers read;
/// gradients, which are added to; master weights and moments, which steps read
/// and write a part at a time. (Rajbhandari et al., "ZeRO-Infinity: Breaking
/// the GPU Memory Wall for Extreme Scale Deep Learning", SC 2021.)
class DiskShards {
 public:
  /// `device`: that of the model. `largest_shard`: elements of a shard, by
  /// which the library chooses buffers. Throws ConfigError for directories that
  /// cannot be used, and Error if files cannot be made.
  DiskShards(
      const DiskRequest& request,
      int rank,
      c10::Device device,
      std::int64_t largest_shard);
  ~DiskShards();

  /// What keeps gradients and optimizer state; null: memory.
  [[nodiscard]] DiskTensors* state() const { return state_.get(); }
  /// Makes tensors there; null: in memory.
  [[nodiscard]] MakeTensor state_maker() const;

  /// Keeps a shard on which optimizers step, and the copy of it in the dtype of
  /// computation; undefined if gathers read the shard itself.
  void keep(const at::Tensor& local, const at::Tensor& rows);

  /// Throws ConfigError for an optimizer whose state cannot be kept.
  void bind(torch::optim::Optimizer& optimizer);
  /// What keeps gradients from here on; null: memory.
  [[nodiscard]] DiskTensors* gradient_keeper() const {
    return expects_steps_ ? nullptr : state_.get();
  }
  /// `whether`: the backward that begins steps on gradients at once, which
  /// then stay in memory.
  void expect_steps(bool whether) {
    expects_steps_ = whether;
    has_room_.clear();
  }
  /// Divides shards into those that a step takes at a time.
  [[nodiscard]] std::vector<ParameterPart> parts_of(
      std::span<const at::Tensor> locals) const;
  /// Frees the room of tensors that are gone: gradients of the last step, say.
  void forget_unused() const;
  /// See Strategy.
  [[nodiscard]] std::vector<ParameterPart> step_parts(
      const torch::optim::Optimizer& optimizer);
  void before_part(
      const torch::optim::Optimizer& optimizer,
      std::span<const ParameterPart> parts);
  void after_part(
      const torch::optim::Optimizer& optimizer,
      const ParameterPart& part);
  /// Rounds shards to their copies in the dtype of computation: after a change
  /// that was not a step.
  void refresh_rows() const;

 private:
  /// What a step on a part reads.
  struct StepTensors {
    std::vector<at::Tensor> gradients;
    std::vector<at::Tensor> changed;
  };

  [[nodiscard]] static StepTensors tensors_of(
      const torch::optim::Optimizer& optimizer,
      const ParameterPart& part,
      bool expects_gradients);
  void reserve(const torch::optim::Optimizer& optimizer) const;
  void round_rows(const at::Tensor& local) const;

  /// Moments, gradients and master weights; null if they are in memory.
  std::shared_ptr<DiskTensors> state_;
  /// Shards of parameters; null if they are in memory.
  std::shared_ptr<DiskTensors> parameters_;
  std::int64_t part_bytes_ = 0;
  bool expects_steps_ = false;
  /// Optimizers whose moments have room, since expect_steps().
  std::unordered_set<const void*> has_room_;
  /// Elements of parameters that stay in memory, as far as they are not used.
  std::int64_t elements_left_ = 0;
  /// Shards in the order of keep(), and the copies of all of them by shard.
  std::vector<at::Tensor> locals_;
  std::unordered_map<const void*, at::Tensor> rows_of_;
  /// What the part that is stepped on holds.
  std::optional<HeldTensors> held_gradients_, held_state_;
};

}  // namespace accelerate::detail
