#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "comm/transport/transport.h"

namespace accelerate::detail {

/// Counts what one rank's connections have carried. Thread-safe.
class TrafficCounter {
 public:
  struct Count {
    std::uint64_t begun = 0;
    /// Operations whose work has been waited for.
    std::uint64_t finished = 0;
    /// The fewest bytes that the rank must send, by the best known algorithm
    /// for R ranks and n bytes: 2 n (R - 1) / R in an all-reduce, n (R - 1) / R
    /// in a reduce-scatter of n, n (R - 1) in an all-gather of n, and the bytes
    /// meant for others in an all-to-all.
    double bytes = 0;
  };

  /// Returns the count of an operation: "all_reduce", "reduce", "broadcast",
  /// "all_gather", "gather", "reduce_scatter", "scatter", "all_to_all",
  /// "barrier" or "send".
  [[nodiscard]] Count of(const std::string& operation) const;
  /// The sums over all operations.
  [[nodiscard]] Count total() const;
  void reset();

  void note_begun(const std::string& operation, double bytes);
  void note_finished(const std::string& operation);

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Count> counts_;
};

/// Counts what the connections of `inner` carry, below the adapters, so the
/// bytes are those actually sent. For measurements and tests
/// (WorldOptions::own_transport); ranks that are threads share `inner` but have
/// separate counters.
std::shared_ptr<Transport> make_counting_transport(
    std::shared_ptr<Transport> inner,
    std::shared_ptr<TrafficCounter> counter);

}  // namespace accelerate::detail
