#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

namespace accelerate::detail {

/// The ranks that exchange tokens, on a group that nothing else uses.
struct TokenRoute {
  Group group = {};
  /// The layer's name in errors, such as "blocks.0.experts".
  std::string layer = {};
  /// Number of exchanges so far, the same on all ranks; shared by all layers.
  std::shared_ptr<int> num_exchanges = std::make_shared<int>(0);
};

/// How many rows this rank sends to, and receives from, each rank.
struct RowCounts {
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;

  [[nodiscard]] RowCounts reversed() const { return {received, sent}; }
};

/// Rows in transit, until TokenExchange::finish().
struct TokenExchangeState;

/// An all-to-all of rows whose counts are known only at run time. `rows`: those
/// for the first rank, then those for the second, and so on; rows x features.
/// Differentiable once: gradients are sent back while backward computes what
/// forward computed between begin and finish.
///
/// All ranks of the group call it alike, and run its backward alike: with
/// `trains`, even a rank whose rows need no gradient. Nothing is recorded for
/// recomputation: received rows are kept.
class TokenExchange {
 public:
  TokenExchange(TokenRoute route, RowCounts counts, bool trains);

  void begin(const at::Tensor& rows);
  /// Returns the rows of the first rank, then those of the second, and so on.
  /// Throws DistributedError naming the ranks that are gone or silent.
  [[nodiscard]] at::Tensor finish();

 private:
  TokenRoute route_;
  RowCounts counts_;
  bool trains_;
  c10::intrusive_ptr<TokenExchangeState> under_way_;
  at::Tensor begun_;
};

}  // namespace accelerate::detail
