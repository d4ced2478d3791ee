#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <accelerate/world.h>

namespace accelerate::detail {

/// How many rows this rank sends to, and receives from, each rank.
struct RowCounts {
  std::vector<std::int64_t> sent;
  std::vector<std::int64_t> received;

  [[nodiscard]] RowCounts reversed() const { return {received, sent}; }
};

/// The ranks that exchange rows. They begin all exchanges of the group
/// (BegunExchange) in the same order.
struct RowRoute {
  Group group = {};
  /// What the exchange is in errors, such as "exchanging the tokens of
  /// blocks.0.experts".
  std::string what = {};
  /// What the rows are in errors, such as "the tokens of experts".
  std::string rows = {};
};

/// Rows in transit, until RowExchange::finish().
struct RowsInTransit;

/// An all-to-all that autograd records, in two halves between which the rank
/// computes. `rows` has those for the first rank, then those for the second,
/// and so on, along dimension 0; on any device. Differentiable once: gradients
/// are sent back while backward computes what forward computed between begin
/// and finish.
///
/// All ranks of the group call it alike, and run its backward alike. Recorded
/// operators cannot replay other ranks' messages, so it must not be called
/// while a segment is recorded. Throws DistributedError naming the ranks that
/// are gone or silent.
class RowExchange {
 public:
  RowExchange(RowRoute route, RowCounts counts);
  RowExchange(const RowExchange&) = delete;
  RowExchange& operator=(const RowExchange&) = delete;
  ~RowExchange();

  /// `trains`: even a rank whose rows need no gradient runs the backward.
  void begin(const at::Tensor& rows, bool trains = false);
  /// Returns the rows of the first rank, then those of the second, and so on.
  [[nodiscard]] at::Tensor finish();

 private:
  RowRoute route_;
  RowCounts counts_;
  c10::intrusive_ptr<RowsInTransit> in_transit_;
  at::Tensor begun_;
};

/// How an all-to-all splits one dimension and concatenates along another.
struct AllToAllDims {
  std::int64_t split_dim = 0;
  /// Size along split_dim of each rank's piece; they sum to the tensor's size.
  std::vector<std::int64_t> split_sizes;
  std::int64_t concat_dim = 0;
  /// Size along concat_dim of each rank's tensor.
  std::vector<std::int64_t> concat_sizes;
};

/// Divides `tensor` along split_dim, sends each rank its piece, and returns the
/// pieces that the ranks sent to this one, joined along concat_dim in the order
/// of the ranks: a RowExchange, begun and finished. Throws ConfigError if sizes
/// do not fit.
at::Tensor all_to_all_autograd(
    const at::Tensor& tensor,
    const RowRoute& route,
    const AllToAllDims& dims);

}  // namespace accelerate::detail
