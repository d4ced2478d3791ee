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

/// Translates the options of dispatch_model() and resolves the main device.
DispatchRequest request_of(const DispatchOptions& options);

/// Returns the device that computes modules placed on "cpu" and "disk".
c10::Device main_device_of(
    const DeviceMap& map,
    const std::optional<MapDevice>& given);

/// Bytes of DispatchOptions::prefetch_memory; 0 if unset.
std::uint64_t memory_of(const std::optional<ByteSize>& size);

/// Dispatches one module. Finds all values before it moves any tensor, so that
/// an error leaves the module unchanged.
class Dispatcher {
 public:
  /// `request` must outlive this object.
  Dispatcher(
      const torch::nn::Module& module,
      const DispatchRequest& request,
      const WeightList& state_dict);

  /// Adds stored values to those of the module and `state_dict`.
  void add_stored(const StoredTensors& tensors) { stored_.add(tensors); }
  /// Adds weights as add_stored() does, but trusts the stored codes to be those
  /// of the module's quantized weights. Otherwise files of codes are compared
  /// and rewritten.
  void add_stored_codes(const StoredTensors& tensors);

  /// Finds the values of weights placed on disk and writes missing ones to the
  /// folder. With `refuses_others`, different values in the folder are an error
  /// instead of a warning.
  void use_disk(
      const std::filesystem::path& folder,
      const OffloadIndex& index,
      bool refuses_others);

  std::unique_ptr<Dispatch::State> run(TierOptions options);

 private:
  /// A tensor's values. Values from a state dict are borrowed: they belong to
  /// the caller and must not be written to.
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
