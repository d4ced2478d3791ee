#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/accelerator_tracking.h>
#include <accelerate/checkpoint.h>
#include <accelerate/detail/object_bytes.h>
#include <accelerate/export.h>
#include <accelerate/model.h>
#include <accelerate/model_weights.h>
#include <accelerate/state_dict.h>
#include <accelerate/weights.h>

namespace accelerate {

/// Checkpoints, and model weights in files; a base class of Accelerator.
class ACCELERATE_API AcceleratorCheckpoints : public AcceleratorTracking {
 public:
  /// Writes everything that is prepared or registered, so that training resumes
  /// exactly after load_state(): weights and buffers, optimizers, schedules,
  /// the loss scaler, loader positions, and every rank's random states. All
  /// ranks must call it.
  ///
  /// Writes to `output_dir` or, without one and with
  /// automatic_checkpoint_naming, to the project's checkpoints. The checkpoint
  /// appears under its name once all of it is durable; a crash leaves the
  /// previous contents. Older checkpoints beyond total_limit are then deleted.
  ///
  /// Throws ConfigError for a name that is taken, CheckpointError naming the
  /// rank that could not write and why, DistributedError if ranks made
  /// different calls.
  SaveTicket save_state(
      const std::filesystem::path& output_dir,
      const SaveStateOptions& options = {}) const;
  SaveTicket save_state(const SaveStateOptions& options = {}) const;
  /// Restores everything prepared and registered from a checkpoint: the newest
  /// complete one, or the one in `input_dir`. All ranks must call it; there can
  /// be more or fewer than when it was saved. Everything is compared first: a
  /// single CheckpointError lists all mismatches, and then nothing was loaded.
  /// Checksums are verified while the data is read; see
  /// LoadStateOptions::verify.
  void load_state(
      const std::filesystem::path& input_dir,
      const LoadStateOptions& options = {}) const;
  void load_state(const LoadStateOptions& options = {}) const;
  /// The checkpoint that load_state() without a path would load, if there is a
  /// complete one. Needs automatic_checkpoint_naming. All ranks must call it.
  [[nodiscard]] std::optional<std::filesystem::path> latest_checkpoint() const;
  /// Loads the newest complete checkpoint of the project, or does nothing if
  /// there is none, as in the first run of a program that is restarted. Returns
  /// whether it loaded one. Needs automatic_checkpoint_naming. All ranks must
  /// call it. Throws like load_state(), and also if there are checkpoints but
  /// all of them are damaged.
  bool resume(const LoadStateOptions& options = {}) const;
  /// Adds objects to checkpoints, in this order. They are borrowed, and must
  /// live as long as the accelerator saves and loads.
  template <Stateful... Objects>
  void register_for_checkpointing(Objects&... objects) const {
    (register_object(
         [&objects] { return StateDict(std::as_const(objects).state_dict()); },
         [&objects](const StateDict& state) {
           objects.load_state_dict(state);
         }),
     ...);
  }
  template <class... Objects>
    requires(
        !(Stateful<Objects> && ...) &&
        !(std::is_convertible_v<Objects&, std::string_view> || ...))
  void register_for_checkpointing(Objects&...) const {
    static_assert(
        detail::kNever<Objects...>,
        "register_for_checkpointing() takes objects with state_dict() and "
        "load_state_dict(); a plain value needs a name: "
        "register_for_checkpointing(\"epoch\", epoch)");
  }
  /// Adds a variable to checkpoints, in the same order. It is borrowed, and
  /// must live as long as the accelerator saves and loads. All ranks must
  /// register it, under the name that it was saved with; rank 0's value is
  /// saved, and every rank loads it. A tensor is loaded in place if its shape
  /// and dtype are the saved ones; otherwise the variable gets a new tensor on
  /// the same device.
  template <CheckpointValue T>
  void register_for_checkpointing(const std::string& name, T& value) const {
    register_object(
        [name, &value] { return detail::state_of_value(name, value); },
        [name, &value](const StateDict& state) {
          detail::load_value(name, value, state);
        });
  }
  /// Writes an object to one file on rank 0, or, with save_on_each_node, on
  /// each node's first rank; other ranks return at once. The file appears once
  /// it is complete and durable. Its format is that of torch.save, which
  /// torch.load(weights_only=True) reads; with `safe_serialization` it is
  /// safetensors, for states that consist of tensors; names in nested states
  /// are "outer.inner". Throws ConfigError for what the format cannot hold,
  /// Error if the file cannot be written.
  void save(
      const at::Tensor& tensor,
      const std::filesystem::path& file,
      bool safe_serialization = false) const;
  void save(
      const StateDict& state,
      const std::filesystem::path& file,
      bool safe_serialization = false) const;
  void save(
      const WeightList& weights,
      const std::filesystem::path& file,
      bool safe_serialization = false) const;
  /// Writes get_state_dict(model): all ranks must call it, since a sharded
  /// model is gathered.
  template <class M>
  void save(
      const Model<M>& model,
      const std::filesystem::path& file,
      bool safe_serialization = false) const {
    const bool is_per_node = project_configuration().save_on_each_node;
    save(
        get_state_dict(model, {.rank0_only = !is_per_node}),
        file,
        safe_serialization);
  }
  /// Writes a prepared model's weights for other programs (weights.h) on rank
  /// 0, or, with save_on_each_node, on each node's first rank. All ranks must
  /// call it; if one cannot write, all throw. A sharded model is gathered piece
  /// by piece: no rank ever holds a full tensor of it.
  template <class M>
  void save_model(
      const Model<M>& model,
      const std::filesystem::path& directory,
      const SaveModelOptions& options = {}) const {
    detail::save_prepared(*model.prepared(), directory, options);
  }
  /// Reads weight files (weights.h) into a prepared model; all ranks must call
  /// it. If the model is sharded, each rank reads its own shards.
  template <class M>
  void load_model(
      const Model<M>& model,
      const std::filesystem::path& path,
      const LoadModelOptions& options = {}) const {
    detail::load_prepared(*model.prepared(), path, options);
  }
  /// Returns the model's tensors by name: its own, or, for a sharded model,
  /// those that `options` select. All ranks must call it.
  template <class M>
  [[nodiscard]] WeightList get_state_dict(
      const Model<M>& model,
      const StateDictOptions& options = {}) const {
    return detail::weights_of(*model.prepared(), options);
  }
  /// Returns this rank's shards of the model's tensors, with their offsets.
  template <class M>
  [[nodiscard]] std::vector<WeightShard> state_dict_shards(
      const Model<M>& model) const {
    return detail::shards_of(*model.prepared());
  }
  /// Registers a hook that save_state() calls on every rank before anything is
  /// collected, in the order of registration.
  HookHandle register_save_state_pre_hook(
      std::function<void(SaveHookContext&)> hook) const;
  /// Registers a hook that load_state() calls on every rank before anything is
  /// compared.
  HookHandle register_load_state_pre_hook(
      std::function<void(LoadHookContext&)> hook) const;
  [[nodiscard]] const ProjectConfiguration& project_configuration() const;
  /// Sets the number of the next automatic checkpoint; std::nullopt: one more
  /// than the highest present.
  void set_iteration(std::optional<std::int64_t> iteration) const;

 protected:
  using AcceleratorTracking::AcceleratorTracking;

 private:
  void register_object(
      std::function<StateDict()> state_dict,
      std::function<void(const StateDict&)> load_state_dict) const;
};

}  // namespace accelerate
