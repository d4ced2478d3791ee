#include "comm/autograd/all_to_all.h"

#include <numeric>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/group/begun_exchange.h"

namespace accelerate::detail {

struct RowsInTransit : torch::CustomClassHolder {
  RowsInTransit(RowRoute way, RowCounts rows)
      : route(std::move(way)), counts(std::move(rows)) {}

  RowRoute route;
  RowCounts counts;
  BegunExchange exchange = {};
  /// Memory for the rows that arrive.
  at::Tensor arriving = {};
  /// The gradients being sent back.
  c10::intrusive_ptr<RowsInTransit> gradients = nullptr;
};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using InTransit = c10::intrusive_ptr<RowsInTransit>;

std::int64_t sum_of(const std::vector<std::int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

// Sends rows, and returns memory for the incoming ones, which is filled when
// receive_rows() returns.
at::Tensor send_rows(RowsInTransit& transit, const at::Tensor& rows) {
  const Group& group = transit.route.group;
  const RowCounts& counts = transit.counts;
  const at::Tensor sent = rows.detach().contiguous();
  std::vector<std::int64_t> sizes = sent.sizes().vec();
  sizes[0] = sum_of(counts.received);
  transit.arriving = at::empty(sizes, sent.options());
  const auto leaving = sent.split_with_sizes(counts.sent);
  const auto coming = transit.arriving.split_with_sizes(counts.received);
  std::vector<PeerMessage> sends, receives;
  for (int step = 1; step < group.size(); ++step) {
    const int target = (group.rank() + step) % group.size();
    const int source = (group.rank() + group.size() - step) % group.size();
    sends.push_back({leaving[static_cast<std::size_t>(target)], target});
    receives.push_back({coming[static_cast<std::size_t>(source)], source});
  }
  transit.exchange = BegunExchange::exchange(
      group, transit.route.what, std::move(sends), std::move(receives));
  const auto own = static_cast<std::size_t>(group.rank());
  coming[own].copy_(leaving[own]);
  return transit.arriving;
}

at::Tensor receive_rows(RowsInTransit& transit) {
  transit.exchange.wait();
  return std::exchange(transit.arriving, {});
}

void require_first_derivative(const RowsInTransit& transit) {
  if (!at::GradMode::is_enabled()) return;
  throw ConfigError(format(
      "[comm] second derivatives through {} on several ranks (create_graph) "
      "are not supported in this version",
      transit.route.rows));
}

InTransit in_transit(const AutogradContext& context) {
  return c10::static_intrusive_pointer_cast<RowsInTransit>(
      context.saved_data.at("rows").toCapsule());
}

// Between BeginRows and FinishRows, the tensor has the rows' memory but not yet
// their values; only FinishRows reads it.
struct BeginRows : torch::autograd::Function<BeginRows> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& rows,
      const at::Tensor& /*anchor*/,
      const InTransit& transit) {
    context->saved_data["rows"] = c10::IValue::make_capsule(transit);
    return send_rows(*transit, rows).detach();
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& /*gradients*/) {
    const InTransit transit = in_transit(*context);
    require_first_derivative(*transit);
    const InTransit gradients = std::exchange(transit->gradients, nullptr);
    // The second half of a split backward (SplitBackward) gets here for the
    // anchor; the rows' gradients arrived in the first half.
    if (!gradients) return {at::Tensor(), at::Tensor(), at::Tensor()};
    return {receive_rows(*gradients), at::Tensor(), at::Tensor()};
  }
};

struct FinishRows : torch::autograd::Function<FinishRows> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& /*begun*/,
      const InTransit& transit) {
    context->saved_data["rows"] = c10::IValue::make_capsule(transit);
    return receive_rows(*transit);
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const InTransit transit = in_transit(*context);
    require_first_derivative(*transit);
    transit->gradients = c10::make_intrusive<RowsInTransit>(
        transit->route, transit->counts.reversed());
    send_rows(*transit->gradients, gradients[0]);
    return {gradients[0], at::Tensor()};
  }
};

void check_sizes(
    const at::Tensor& tensor,
    const Group& group,
    const AllToAllDims& dims) {
  const auto count = static_cast<std::size_t>(group.size());
  const bool fits = dims.split_dim != dims.concat_dim &&
      dims.split_sizes.size() == count && dims.concat_sizes.size() == count &&
      sum_of(dims.split_sizes) == tensor.size(dims.split_dim) &&
      dims.concat_sizes[static_cast<std::size_t>(group.rank())] ==
          tensor.size(dims.concat_dim);
  if (fits) return;
  throw ConfigError(format(
      "[comm] an all-to-all of {} among {} ranks cannot send {} of dimension "
      "{} and receive {} in dimension {}: sizes along the first must add up to "
      "the tensor's, and this rank's along the second must be the tensor's",
      tensor.sizes(),
      group.size(),
      at::IntArrayRef(dims.split_sizes),
      dims.split_dim,
      at::IntArrayRef(dims.concat_sizes),
      dims.concat_dim));
}

}  // namespace

RowExchange::RowExchange(RowRoute route, RowCounts counts)
    : route_(std::move(route)), counts_(std::move(counts)) {}

RowExchange::~RowExchange() = default;

void RowExchange::begin(const at::Tensor& rows, bool trains) {
  if (route_.group.size() == 1) {
    begun_ = rows;
    return;
  }
  in_transit_ = c10::make_intrusive<RowsInTransit>(route_, counts_);
  // A leaf on every rank makes all ranks run the backward.
  const at::Tensor anchor = at::empty({0}, rows.options().requires_grad(false));
  if (trains && at::GradMode::is_enabled()) anchor.requires_grad_();
  begun_ = BeginRows::apply(rows, anchor, in_transit_);
}

at::Tensor RowExchange::finish() {
  const at::Tensor begun = std::exchange(begun_, {});
  if (!in_transit_) return begun;
  return FinishRows::apply(begun, std::exchange(in_transit_, nullptr));
}

at::Tensor all_to_all_autograd(
    const at::Tensor& tensor,
    const RowRoute& route,
    const AllToAllDims& dims) {
  const Group& group = route.group;
  check_sizes(tensor, group, dims);
  if (group.size() == 1) return tensor;
  // Flattened, since sent and received pieces differ in two dimensions.
  RowCounts counts;
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& piece :
       tensor.split_with_sizes(dims.split_sizes, dims.split_dim)) {
    pieces.push_back(piece.reshape({-1}));
    counts.sent.push_back(piece.numel());
  }
  std::vector<std::vector<std::int64_t>> shapes;
  for (const std::int64_t length : dims.concat_sizes) {
    shapes.push_back(tensor.sizes().vec());
    shapes.back()[static_cast<std::size_t>(dims.split_dim)] =
        dims.split_sizes[static_cast<std::size_t>(group.rank())];
    shapes.back()[static_cast<std::size_t>(dims.concat_dim)] = length;
    counts.received.push_back(c10::multiply_integers(shapes.back()));
  }
  RowExchange exchange(route, counts);
  exchange.begin(at::cat(pieces));
  std::vector<at::Tensor> received =
      exchange.finish().split_with_sizes(counts.received);
  for (std::size_t rank = 0; rank < received.size(); ++rank)
    received[rank] = received[rank].view(shapes[rank]);
  return at::cat(received, dims.concat_dim);
}

}  // namespace accelerate::detail
