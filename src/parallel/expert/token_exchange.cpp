#include "parallel/expert/token_exchange.h"

#include <memory>
#include <numeric>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/group/p2p_batch.h"
#include "parallel/expert/unrecorded.h"

namespace accelerate::detail {

struct TokenExchangeState : torch::CustomClassHolder {
  TokenExchangeState(TokenRoute way, RowCounts rows)
      : route(std::move(way)), counts(std::move(rows)) {}

  TokenRoute route;
  RowCounts counts;
  /// Null once the rows have arrived.
  std::unique_ptr<P2PBatch> messages = nullptr;
  /// The rows that arrive, in host memory.
  at::Tensor arriving = {};
  at::Device device = at::kCPU;
  /// The gradients being sent back.
  c10::intrusive_ptr<TokenExchangeState> gradients = nullptr;
};

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using UnderWay = c10::intrusive_ptr<TokenExchangeState>;

// A rank that gets no tokens from another can be this many exchanges ahead of
// it.
constexpr int kNumTags = 1 << 16;

std::vector<std::int64_t> with_num_rows(
    const at::Tensor& like,
    std::int64_t num_rows) {
  std::vector<std::int64_t> sizes = like.sizes().vec();
  sizes[0] = num_rows;
  return sizes;
}

// Sends rows, and returns memory for the incoming ones, which is filled when
// receive_rows() returns.
at::Tensor send_rows(TokenExchangeState& exchange, const at::Tensor& rows) {
  const Group& group = exchange.route.group;
  const RowCounts& counts = exchange.counts;
  exchange.device = rows.device();
  const at::Tensor sent = rows.detach().to(at::kCPU).contiguous();
  const std::int64_t num_received = std::accumulate(
      counts.received.begin(), counts.received.end(), std::int64_t{0});
  exchange.arriving =
      at::empty(with_num_rows(sent, num_received), sent.options());
  exchange.messages = std::make_unique<P2PBatch>(
      group, format("exchanging the tokens of {}", exchange.route.layer));
  const int tag = (*exchange.route.num_exchanges)++ % kNumTags;
  std::vector<std::int64_t> sent_from{0}, received_at{0};
  for (std::size_t rank = 0; rank < counts.sent.size(); ++rank) {
    sent_from.push_back(sent_from.back() + counts.sent[rank]);
    received_at.push_back(received_at.back() + counts.received[rank]);
  }
  for (int step = 1; step < group.size(); ++step) {
    const int source = (group.rank() + group.size() - step) % group.size();
    const auto s = static_cast<std::size_t>(source);
    exchange.messages->receive(
        exchange.arriving.narrow(0, received_at[s], counts.received[s]),
        source,
        tag);
  }
  for (int step = 1; step < group.size(); ++step) {
    const int target = (group.rank() + step) % group.size();
    const auto t = static_cast<std::size_t>(target);
    exchange.messages->send(
        sent.narrow(0, sent_from[t], counts.sent[t]), target, tag);
  }
  const auto own = static_cast<std::size_t>(group.rank());
  exchange.arriving.narrow(0, received_at[own], counts.received[own])
      .copy_(sent.narrow(0, sent_from[own], counts.sent[own]));
  return exchange.arriving;
}

at::Tensor receive_rows(TokenExchangeState& exchange) {
  exchange.messages->wait();
  exchange.messages.reset();
  const at::Tensor arrived = std::exchange(exchange.arriving, {});
  return exchange.device.is_cpu() ? arrived : arrived.to(exchange.device);
}

void require_first_derivative() {
  if (!at::GradMode::is_enabled()) return;
  throw ConfigError(
      "[parallel] a second derivative was asked for through the tokens of "
      "experts on several ranks (create_graph), which this version does not "
      "compute; set expert to 1");
}

UnderWay exchange_of(const AutogradContext& context) {
  return c10::static_intrusive_pointer_cast<TokenExchangeState>(
      context.saved_data.at("exchange").toCapsule());
}

// Between BeginRows and FinishRows, the tensor has the rows' memory but not yet
// their values; only FinishRows reads it.
struct BeginRows : torch::autograd::Function<BeginRows> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& rows,
      const at::Tensor& /*anchor*/,
      const UnderWay& exchange) {
    const Unrecorded unrecorded;
    context->saved_data["exchange"] = c10::IValue::make_capsule(exchange);
    const at::Tensor arriving = send_rows(*exchange, rows);
    return exchange->device.is_cpu()
        ? arriving.detach()
        : at::empty(arriving.sizes(), rows.options());
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& /*gradients*/) {
    require_first_derivative();
    const UnderWay exchange = exchange_of(*context);
    const UnderWay gradients = std::exchange(exchange->gradients, nullptr);
    // The second half of a split backward (SplitBackward) gets here for the
    // anchor; the rows' gradients came in the first half.
    if (!gradients) return {at::Tensor(), at::Tensor(), at::Tensor()};
    return {receive_rows(*gradients), at::Tensor(), at::Tensor()};
  }
};

struct FinishRows : torch::autograd::Function<FinishRows> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& /*begun*/,
      const UnderWay& exchange) {
    const Unrecorded unrecorded;
    context->saved_data["exchange"] = c10::IValue::make_capsule(exchange);
    return receive_rows(*exchange);
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    require_first_derivative();
    const UnderWay exchange = exchange_of(*context);
    exchange->gradients = c10::make_intrusive<TokenExchangeState>(
        exchange->route, exchange->counts.reversed());
    send_rows(*exchange->gradients, gradients[0]);
    return {gradients[0], at::Tensor()};
  }
};

}  // namespace

TokenExchange::TokenExchange(TokenRoute route, RowCounts counts, bool trains)
    : route_(std::move(route)), counts_(std::move(counts)), trains_(trains) {}

void TokenExchange::begin(const at::Tensor& rows) {
  if (route_.group.size() == 1) {
    begun_ = rows;
    return;
  }
  under_way_ = c10::make_intrusive<TokenExchangeState>(route_, counts_);
  // A leaf on every rank makes all ranks run the backward.
  at::Tensor anchor;
  {
    const Unrecorded unrecorded;
    anchor = at::empty({0}, rows.options().requires_grad(false));
    if (trains_ && at::GradMode::is_enabled()) anchor.requires_grad_();
  }
  begun_ = BeginRows::apply(rows, anchor, under_way_);
}

at::Tensor TokenExchange::finish() {
  const at::Tensor begun = std::exchange(begun_, {});
  if (!under_way_) return begun;
  return FinishRows::apply(begun, std::exchange(under_way_, nullptr));
}

}  // namespace accelerate::detail
