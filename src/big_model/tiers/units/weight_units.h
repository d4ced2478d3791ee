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

/// Alignment of buffers in host memory, as direct reads require.
inline constexpr std::uint64_t kWeightAlignment = 4096;

/// Where an offloaded tensor's values live between forwards: in host memory or
/// in files.
struct WeightSource {
  at::Tensor host = {};
  /// True if the caller owns the host memory, which is then never written to.
  bool is_borrowed = false;
  std::shared_ptr<const StoredTensor> stored = nullptr;
  std::shared_ptr<FirstContents> first = std::make_shared<FirstContents>();
};

/// A module's tensor that has memory only while it is needed.
struct OffloadedTensor {
  std::string name;  ///< dotted; the first if it has several
  at::Tensor tensor;
  WeightSource source;
  /// Device on which operators use it.
  c10::Device device = c10::kCPU;
  /// Index of its unit.
  std::size_t unit = 0;
  /// Whether forwards may change it.
  bool is_buffer = false;
};

/// Tensors that are fetched and evicted together: the tensors of one module,
/// with or without its submodules.
struct WeightUnit {
  std::string name;
  std::vector<std::size_t> tensors;
  /// Bytes it takes on the device that computes with it.
  std::uint64_t num_bytes = 0;
};

/// Whether a tensor's values are in host memory with the device, dtype and
/// strides that its operators use.
bool is_ready_on_host(const OffloadedTensor& tensor);

/// Returns a value in host memory, pinned if a device will copy from it and
/// pinned memory is available.
at::Tensor on_host(const at::Tensor& value, c10::Device device);

/// Bytes of a tensor's elements, even if the tensor has no memory.
std::uint64_t num_bytes_of(const at::Tensor& tensor);

/// A unit's values on the device that computes with it.
struct FetchedUnit {
  /// One entry per tensor, in the order of WeightUnit::tensors.
  std::vector<at::Tensor> values;
  /// Buffer that holds the values; undefined if they have their own memory.
  at::Tensor buffer = {};
  /// Bytes mapped from files.
  std::uint64_t mapped_bytes = 0;
  /// Set if values are copied to a device and may not have arrived yet: a
  /// stream that uses them must wait for this event.
  std::shared_ptr<c10::Event> arrival = nullptr;
};

/// The tensors of one unit to fetch, and the memory to read them into.
struct FetchRequest {
  std::vector<const OffloadedTensor*> tensors;
  /// Host memory for the tensors that come from files.
  at::Tensor buffer = {};
};

/// Bytes of host memory needed to fetch those of these tensors that come from
/// files.
std::uint64_t buffer_bytes(const std::vector<const OffloadedTensor*>& tensors);

/// Fetches several units at once. Values of the host tier that are needed on
/// the CPU are not copied. Cached ranges of files that cannot change unnoticed
/// are mapped. The buffers are in use until the units have arrived.
class UnitsFetch {
 public:
  /// Locates the values. Throws CheckpointError for files that changed or have
  /// a dtype that LibTorch lacks.
  explicit UnitsFetch(std::vector<FetchRequest> requests);

  /// Boxes that have to be read before finish().
  [[nodiscard]] const std::vector<BoxToRead>& boxes() const { return boxes_; }
  /// Converts the tensors that were read and starts copying them to their
  /// devices. Throws CheckpointError if a file has changed or is damaged, Error
  /// if a file cannot be read.
  std::vector<FetchedUnit> finish(DeviceCopies& copies);
  /// The requests, with their host memory.
  [[nodiscard]] std::vector<FetchRequest>& requests() { return requests_; }

 private:
  std::vector<FetchRequest> requests_;
  std::vector<FetchedUnit> units_;
  std::vector<BoxToRead> boxes_;
  /// Versions of each tensor's files, per unit.
  std::vector<std::vector<FirstContents::Versions>> versions_;
};

/// Fetches units and waits for the reads, but not for copies to devices.
std::vector<FetchedUnit> fetch(
    std::vector<FetchRequest> requests,
    DeviceCopies& copies);

/// Fetches one tensor and waits until it has arrived.
at::Tensor fetch_now(const OffloadedTensor& tensor);

}  // namespace accelerate::detail
