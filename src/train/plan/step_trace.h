#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace accelerate::detail {

/// A memory event of a forward and backward. Two runs with different numbers of
/// samples give the sizes for any number.
struct TraceEvent {
  enum class Kind : std::uint8_t {
    /// Allocation `index` begins, of `fixed_bytes + num_samples *
    /// bytes_per_sample` bytes.
    allocate,
    /// Allocation `index` ends.
    release,
    /// An operator reads parameter `index`.
    read,
    end_of_forward,
    /// The gradient of parameter `index` is complete, in `allocation`, whose
    /// ownership passes to the gradients.
    gradient,
  };
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  Kind kind = Kind::allocate;
  std::size_t index = 0;
  std::size_t allocation = kNone;
  double fixed_bytes = 0;
  double bytes_per_sample = 0;
  /// For scratch memory of kernels that process many samples in blocks: with
  /// `grows_less`, the size is at most this linear function of the samples.
  bool grows_less = false;
  double fixed_bytes_of_many = 0;
  double bytes_per_sample_of_many = 0;
  /// For `allocate` and `release`: a kernel's own memory, which bypasses
  /// LibTorch's allocator.
  bool is_kernels_own = false;
  /// A hash of the name of the operator that began last.
  std::size_t last_operator = 0;
};

/// Bytes of an allocation with this number of samples.
[[nodiscard]] double bytes_of(const TraceEvent& event, std::int64_t samples);

struct StepTrace {
  std::vector<TraceEvent> events;
  std::size_t num_allocations = 0;
};

/// A parameter of the planned model.
struct PlannedParameter {
  static constexpr std::size_t kUnsharded = static_cast<std::size_t>(-1);

  std::string name;
  std::int64_t num_elements = 0;
  std::int64_t num_rows = 1;  ///< size of the dimension that is sharded
  std::int64_t element_bytes = 4;
  bool is_trained = true;
  /// Keeps its own dtype even if others are cast.
  bool keeps_precision = false;
  /// The unit in which it is gathered, or kUnsharded.
  std::size_t unit = kUnsharded;

  [[nodiscard]] std::int64_t num_bytes() const {
    return num_elements * element_bytes;
  }
};

/// Facts about a model that a simulation needs besides its trace.
struct PlannedModel {
  std::vector<PlannedParameter> parameters;
  std::size_t num_units = 0;
  std::int64_t buffer_bytes = 0;
};

}  // namespace accelerate::detail
