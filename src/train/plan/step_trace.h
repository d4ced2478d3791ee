#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace accelerate::detail {

/// What happens to memory in one forward and backward, in order. Two runs with
/// different numbers of samples give sizes for any number.
struct TraceEvent {
  enum class Kind : std::uint8_t {
    /// Allocation `index` begins, with `fixed_bytes + num_samples *
    /// bytes_per_sample`.
    allocate,
    /// Allocation `index` ends.
    release,
    /// An operator takes parameter `index`.
    read,
    end_of_forward,
    /// The gradient of parameter `index` is complete, in `allocation`, which
    /// from then on belongs to whoever keeps gradients.
    gradient,
  };
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  Kind kind = Kind::allocate;
  std::size_t index = 0;
  std::size_t allocation = kNone;
  double fixed_bytes = 0;
  double bytes_per_sample = 0;
  /// For `allocate` and `release`: a kernel's own memory, which LibTorch's
  /// allocator does not know.
  bool is_kernels_own = false;
  /// A hash of the name of the operator that began last.
  std::size_t last_operator = 0;
};

struct StepTrace {
  std::vector<TraceEvent> events;
  std::size_t num_allocations = 0;
};

/// A parameter of the model that is planned for.
struct PlannedParameter {
  static constexpr std::size_t kUnsharded = static_cast<std::size_t>(-1);

  std::string name;
  std::int64_t num_elements = 0;
  std::int64_t num_rows = 1;  ///< size of the dimension that is sharded
  std::int64_t element_bytes = 4;
  bool is_trained = true;
  /// Computed in its own dtype even if others are cast.
  bool keeps_precision = false;
  /// The unit in which it is gathered, or kUnsharded.
  std::size_t unit = kUnsharded;

  [[nodiscard]] std::int64_t num_bytes() const {
    return num_elements * element_bytes;
  }
};

/// What a simulation needs to know of a model besides its trace.
struct PlannedModel {
  std::vector<PlannedParameter> parameters;
  std::size_t num_units = 0;
  std::int64_t buffer_bytes = 0;
};

}  // namespace accelerate::detail
