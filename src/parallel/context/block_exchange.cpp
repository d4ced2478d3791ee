#include "parallel/context/block_exchange.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr std::int64_t kPositions = 2;

// The dimension of positions in the dense tensors of messages. In blocks it is
// the first, so that a block's first positions are contiguous.
constexpr std::int64_t kPositionsOfBlock = 0;
// In gradients it comes before the heads, as in LibTorch's CPU kernels.
constexpr std::int64_t kPositionsOfGradient = 1;

// Returns a dense tensor with the positions as dimension `place`.
at::Tensor packed(const at::Tensor& tensor, std::int64_t place) {
  return tensor.movedim(kPositions, place).contiguous();
}

// Tensors for messages of `count` positions in the layout of packed().
std::vector<at::Tensor> empty_packed(
    const std::vector<at::Tensor>& like,
    std::int64_t count,
    std::int64_t place) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& tensor : like) {
    std::vector<std::int64_t> sizes =
        tensor.movedim(kPositions, place).sizes().vec();
    sizes[static_cast<std::size_t>(place)] = count;
    all.push_back(at::empty(sizes, tensor.options()));
  }
  return all;
}

int rank_at(const Group& group, int distance) {
  return (group.rank() + distance + group.size()) % group.size();
}

}  // namespace

BlockExchange::BlockExchange(
    Group group,
    std::vector<at::Tensor> own,
    KeyValueRotation rotation,
    std::function<std::int64_t(int, int)> num_positions)
    : group_(std::move(group)),
      own_(std::move(own)),
      rotation_(rotation),
      num_positions_(std::move(num_positions)) {}

int BlockExchange::owner_at(int step) const { return peer(-step); }

int BlockExchange::peer(int distance) const {
  return rank_at(group_, distance);
}

void BlockExchange::begin(int step) {
  const int owner = peer(-step), reader = peer(step);
  std::vector<at::Tensor> block = empty_packed(
      own_, num_positions_(group_.rank(), owner), kPositionsOfBlock);
  const std::int64_t count = num_positions_(reader, group_.rank());
  if (packed_.empty() && count > 0) {
    for (const at::Tensor& tensor : own_)
      packed_.push_back(packed(tensor, kPositionsOfBlock));
  }
  std::vector<PeerMessage> sends, receives;
  for (const at::Tensor& tensor : block) receives.push_back({tensor, owner});
  for (const at::Tensor& tensor : packed_)
    sends.push_back({tensor.narrow(kPositionsOfBlock, 0, count), reader});
  BegunExchange exchange = BegunExchange::exchange(
      group_,
      format("exchanging keys and values, step {}", step),
      std::move(sends),
      std::move(receives));
  steps_.push_back({std::move(block), std::move(exchange)});
}

const std::vector<at::Tensor>& BlockExchange::block_at(int step) {
  if (step == 0) {
    const std::int64_t count = num_positions_(group_.rank(), group_.rank());
    for (const at::Tensor& tensor : own_)
      current_.push_back(tensor.narrow(kPositions, 0, count));
  } else {
    if (step > 1) {
      steps_.front().exchange.wait();
      steps_.pop_front();
    }
    steps_.front().exchange.wait_for_receives();
    current_ = std::exchange(steps_.front().block, {});
    for (at::Tensor& tensor : current_)
      tensor = tensor.movedim(kPositionsOfBlock, kPositions);
  }
  const bool is_gathered = rotation_ == KeyValueRotation::allgather;
  const int last = is_gathered ? group_.size() - 1 : step + 1;
  while (begun_ < std::min(last, group_.size() - 1)) begin(++begun_);
  return current_;
}

void BlockExchange::finish() {
  current_.clear();
  for (Step& step : steps_) step.exchange.wait();
  steps_.clear();
  packed_.clear();
}

GradientExchange::GradientExchange(
    Group group,
    std::vector<at::Tensor> sums,
    std::function<std::int64_t(int, int)> num_positions)
    : group_(std::move(group)),
      sums_(std::move(sums)),
      num_positions_(std::move(num_positions)) {}

void GradientExchange::contribute(int step, std::vector<at::Tensor> gradients) {
  add_received();
  const int owner = rank_at(group_, -step), reader = rank_at(group_, step);
  received_ = empty_packed(
      sums_, num_positions_(reader, group_.rank()), kPositionsOfGradient);
  std::vector<PeerMessage> sends, receives;
  for (const at::Tensor& tensor : received_)
    receives.push_back({tensor, reader});
  for (const at::Tensor& gradient : gradients) {
    if (gradient.defined())
      sends.push_back({packed(gradient, kPositionsOfGradient), owner});
  }
  exchange_ = BegunExchange::exchange(
      group_,
      format("exchanging gradients of keys and values, step {}", step),
      std::move(sends),
      std::move(receives));
}

void GradientExchange::add_received() {
  exchange_.wait();
  for (std::size_t i = 0; i < received_.size(); ++i) {
    const std::int64_t count = received_[i].size(kPositionsOfGradient);
    sums_[i]
        .narrow(kPositions, 0, count)
        .add_(received_[i].movedim(kPositionsOfGradient, kPositions));
  }
  received_.clear();
}

void GradientExchange::finish() { add_received(); }

}  // namespace accelerate::detail
