#include "parallel/context/block_exchange.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// Tags of a group's messages, apart from those of other traffic among the same
// ranks, which are numbered from 0. Two ranks exchange one block and one
// gradient per attention, and a rank has received all of one attention before
// it expects anything of the next.
constexpr int kFirstBlockTag = 1 << 20;
constexpr int kFirstGradientTag = kFirstBlockTag + BlockExchange::kTensors;

at::Tensor first_positions(const at::Tensor& tensor, std::int64_t count) {
  return tensor.narrow(2, 0, count).contiguous();
}

std::vector<at::Tensor> empty_like_first(
    const std::vector<at::Tensor>& tensors,
    std::int64_t count) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& tensor : tensors) {
    std::vector<std::int64_t> sizes = tensor.sizes().vec();
    sizes[2] = count;
    all.push_back(at::empty(sizes, tensor.options()));
  }
  return all;
}

int rank_at(const Group& group, int distance) {
  return (group.rank() + distance + group.size()) % group.size();
}

}  // namespace

BlockExchange::Transfer::Transfer(const Group& group, int owner, int reader)
    : receives(group, format("receiving keys and values of rank {}", owner)),
      sends(group, format("sending keys and values to rank {}", reader)) {}

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
  Transfer& transfer = transfers_.emplace_back(group_, owner, reader);
  transfer.block = empty_like_first(own_, num_positions_(group_.rank(), owner));
  const std::int64_t count = num_positions_(reader, group_.rank());
  for (std::size_t i = 0; i < own_.size(); ++i) {
    const int tag = kFirstBlockTag + static_cast<int>(i);
    transfer.receives.receive(transfer.block[i], owner, tag);
    transfer.sends.send(first_positions(own_[i], count), reader, tag);
  }
}

const std::vector<at::Tensor>& BlockExchange::block_at(int step) {
  if (step == 0) {
    const std::int64_t count = num_positions_(group_.rank(), group_.rank());
    for (at::Tensor& tensor : own_) {
      tensor = tensor.contiguous();
      current_.push_back(tensor.narrow(2, 0, count));
    }
  } else {
    if (step > 1) {
      transfers_.front().sends.wait();
      transfers_.pop_front();
    }
    transfers_.front().receives.wait();
    current_ = std::exchange(transfers_.front().block, {});
  }
  const bool is_gathered = rotation_ == KeyValueRotation::allgather;
  const int last = is_gathered ? group_.size() - 1 : step + 1;
  while (begun_ < std::min(last, group_.size() - 1)) begin(++begun_);
  return current_;
}

void BlockExchange::finish() {
  current_.clear();
  for (Transfer& transfer : transfers_) transfer.sends.wait();
  transfers_.clear();
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
  P2PBatch& batch = messages_.emplace_back(
      group_, format("exchanging gradients of keys and values, step {}", step));
  received_ = empty_like_first(sums_, num_positions_(reader, group_.rank()));
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const int tag = kFirstGradientTag + static_cast<int>(i);
    batch.receive(received_[i], reader, tag);
    if (gradients[i].defined())
      batch.send(gradients[i].contiguous(), owner, tag);
  }
}

void GradientExchange::add_received() {
  if (messages_.empty()) return;
  messages_.front().wait();
  messages_.pop_front();
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const std::int64_t count = received_[i].size(2);
    sums_[i].narrow(2, 0, count).add_(received_[i]);
  }
  received_.clear();
}

void GradientExchange::finish() { add_received(); }

}  // namespace accelerate::detail
