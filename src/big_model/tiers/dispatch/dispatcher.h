#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <accelerate/big_model.h>

#include "big_model/tiers/dispatch/dispatch_plan.h"
#include "big_model/tiers/keeper/tier_keeper.h"

namespace accelerate::detail {

/// What dispatch_model() asks for, given the device that its map leads to.
DispatchRequest request_of(const DispatchOptions& options);

/// The device on which modules of "cpu" and "disk" are computed.
c10::Device main_device_of(
    const DeviceMap& map,
    const std::optional<MapDevice>& given);

/// Bytes of DispatchOptions::prefetch_memory; 0 if it is not set.
std::uint64_t memory_of(const std::optional<ByteSize>& size);

/// Dispatches one module: first finds all values, then moves tensors, so that an
/// error leaves the module as it was.
class Dispatcher {
 public:
  /// `request` must outlive this object.
  Dispatcher(
      const torch::nn::Module& module,
      const DispatchRequest& request,
      const WeightList& state_dict);

  /// Where values are besides the module and `state_dict`.
  void add_stored(const StoredTensors& tensors) { stored_.add(tensors); }
  /// The same for weights that are held as codes, too: these are the ones in
  /// the files. Otherwise their files are compared with them and written anew.
  void add_stored_codes(const StoredTensors& tensors);

  /// Finds the values of weights that are on disk, and writes those to the
  /// folder that it lacks. With `refuses_others`, a folder that has other values
  /// is an error instead of a warning.
  void use_disk(
      const std::filesystem::path& folder,
      const OffloadIndex& index,
      bool refuses_others);

  std::unique_ptr<Dispatch::State> run(TierOptions options);

 private:
  /// A tensor's values. Those of a state dict belong to the caller: a model
  /// may read them, and must not write to them.
  struct Value {
    at::Tensor tensor;
    bool is_borrowed = false;
  };

  void look_for_others(const std::filesystem::path& folder, bool refuses_others)
      const;
  [[nodiscard]] bool has_file(std::size_t kept) const;
  [[nodiscard]] WeightList codes_to_write() const;
  void place_codes();
  [[nodiscard]] Value value_of(
      const std::vector<std::string>& names,
      const at::Tensor& tensor) const;
  void find_sources();
  void require_free() const;
  [[nodiscard]] std::vector<at::Tensor> resident_values() const;
  void watch(Dispatch::State& state) const;

  const DispatchRequest& request_;
  DispatchPlan plan_;
  std::unordered_map<std::string, at::Tensor> values_;
  StoredWeights stored_;
  bool has_stored_codes_ = false;
};

}  // namespace accelerate::detail
