#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/ScalarType.h>

#include "big_model/tiers/units/device_copies.h"
#include "big_model/tiers/units/first_contents.h"
#include "format/tensors/box_reader.h"
#include "format/tensors/stored_tensors.h"

namespace accelerate::detail {

/// Tensors in host memory begin at multiples of this, as direct reads like them.
inline constexpr std::uint64_t kWeightAlignment = 4096;

/// Where an offloaded tensor's values are between forwards: in host memory, or
/// in files.
struct WeightSource {
  at::Tensor host = {};
  /// The host memory belongs to somebody else and is not written to.
  bool is_borrowed = false;
  std::shared_ptr<const StoredTensor> stored = nullptr;
  std::shared_ptr<FirstContents> first = std::make_shared<FirstContents>();
};

/// A tensor of a module that has memory only while it is needed.
struct OffloadedTensor {
  std::string name;  ///< dotted; the first of its names
  at::Tensor tensor;
  WeightSource source;
  /// Where it is computed with.
  c10::Device device = c10::kCPU;
  /// Its unit.
  std::size_t unit = 0;
};

/// Tensors that are fetched and evicted together: those of a module, or of a
/// module with everything below it.
struct WeightUnit {
  std::string name;
  std::vector<std::size_t> tensors;
  /// What it takes where it is computed with.
  std::uint64_t num_bytes = 0;
};

/// Whether a tensor's values are in host memory as its operators want them.
bool is_ready_on_host(const OffloadedTensor& tensor);

/// A value in host memory, pinned where a device copies from it if there is such
/// memory.
at::Tensor on_host(const at::Tensor& value, c10::Device device);

/// Bytes of a tensor's elements, also of one without memory.
std::uint64_t num_bytes_of(const at::Tensor& tensor);

/// A unit's values, where it is computed with.
struct FetchedUnit {
  /// In the order of WeightUnit::tensors.
  std::vector<at::Tensor> values;
  /// What they lie in; undefined if they have memory of their own.
  at::Tensor buffer = {};
  /// Bytes that are pages of files.
  std::uint64_t mapped_bytes = 0;
  /// Set if values are copied to a device, and may not be there yet: a stream
  /// that uses them has to wait for it.
  std::shared_ptr<c10::Event> arrival = nullptr;
};

/// What fetches need of the tensors of some units.
struct FetchRequest {
  std::vector<const OffloadedTensor*> tensors;
  /// Host memory for those that come from files.
  at::Tensor buffer = {};
};

/// Host memory that a fetch of these tensors needs: of those that come from
/// files.
std::uint64_t buffer_bytes(const std::vector<const OffloadedTensor*>& tensors);

/// A fetch of some units, in one go. Values of the host tier that are needed on
/// the CPU are not copied. Files that cannot change unnoticed are mapped where
/// they are cached. The buffers are in use until the units have arrived.
class UnitsFetch {
 public:
  /// Finds values where they are. Throws CheckpointError for files that changed
  /// or have no dtype of LibTorch.
  explicit UnitsFetch(std::vector<FetchRequest> requests);

  /// What has to be read.
  [[nodiscard]] const std::vector<BoxToRead>& boxes() const { return boxes_; }
  /// Converts tensors that have been read, and begins to copy them to their
  /// devices. Throws CheckpointError for files that changed or are damaged,
  /// Error if one cannot be read.
  std::vector<FetchedUnit> finish(DeviceCopies& copies);
  /// Their host memory.
  [[nodiscard]] std::vector<FetchRequest>& requests() { return requests_; }

 private:
  std::vector<FetchRequest> requests_;
  std::vector<FetchedUnit> units_;
  std::vector<BoxToRead> boxes_;
  /// Versions of each tensor's files, by unit.
  std::vector<std::vector<FirstContents::Versions>> versions_;
};

/// Fetches units and waits for what is read.
std::vector<FetchedUnit> fetch(
    std::vector<FetchRequest> requests,
    DeviceCopies& copies);

/// The same for one tensor, which has arrived when it returns.
at::Tensor fetch_now(const OffloadedTensor& tensor);

}  // namespace accelerate::detail
