#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "format/tensors/stored_tensors.h"

namespace accelerate::detail {

/// Where an offloaded tensor's values are between forwards: in host memory, or
/// in files.
struct WeightSource {
  at::Tensor host = {};
  std::shared_ptr<const StoredTensor> stored = nullptr;
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

/// Bytes of a tensor's elements, also of one without memory.
std::uint64_t num_bytes_of(const at::Tensor& tensor);

/// Memory of tensors that were evicted, for the next ones. Thread-safe if its
/// calls are under one lock.
class BufferPool {
 public:
  /// Memory of the host for at least so many bytes, and its tensor of bytes.
  at::Tensor take(std::uint64_t num_bytes);
  /// Takes memory back, unless somebody else still uses it.
  void give_back(at::Tensor buffer);
  /// Frees memory until so much is left.
  void trim(std::uint64_t num_bytes);
  void clear() { buffers_.clear(); }

 private:
  std::vector<at::Tensor> buffers_;
};

/// A unit's values, where it is computed with.
struct FetchedUnit {
  /// In the order of WeightUnit::tensors.
  std::vector<at::Tensor> values;
  /// What they lie in; undefined if they have memory of their own.
  at::Tensor buffer = {};
  /// Some values are pages of files, which change with them.
  bool is_mapped = false;
};

/// Whether values that are pages of files may have changed since the fetch.
bool has_changed_files(
    const FetchedUnit& unit,
    const std::vector<const OffloadedTensor*>& tensors);

/// What fetches need of the tensors of some units.
struct FetchRequest {
  std::vector<const OffloadedTensor*> tensors;
  /// Host memory for those that come from files.
  at::Tensor buffer = {};
};

/// Host memory that a fetch of these tensors needs: of those that come from
/// files.
std::uint64_t buffer_bytes(const std::vector<const OffloadedTensor*>& tensors);

/// Reads, converts and copies tensors, of all requests in one go. Values of the
/// host tier that are needed on the CPU are not copied. Throws CheckpointError
/// for files that changed or are damaged, Error if one cannot be read.
std::vector<FetchedUnit> fetch(const std::vector<FetchRequest>& requests);

}  // namespace accelerate::detail
