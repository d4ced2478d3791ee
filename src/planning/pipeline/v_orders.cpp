#include "planning/pipeline/orders.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

namespace accelerate::detail {

namespace {

using ActionKind = PipelineActionKind;

// Builds the order of a rank with two chunks, counting micro-batches.
class TwoChunks {
 public:
  void wait(int count) {
    slots_.insert(slots_.end(), static_cast<std::size_t>(count), std::nullopt);
  }
  void forward(int chunk) {
    add(ActionKind::forward, chunk, next_forward_[at(chunk)]++);
  }
  void backward(int chunk) {
    add(ActionKind::backward, chunk, next_backward_[at(chunk)]++);
  }
  /// Leaves the gradients of weights to weight().
  void input(int chunk) {
    const int micro_batch = next_backward_[at(chunk)]++;
    add(ActionKind::backward_input, chunk, micro_batch);
    owed_.push_back({chunk, micro_batch});
  }
  /// Computes the oldest gradients of weights that are owed, if any.
  void weight() {
    if (!owed_.empty()) take(owed_.begin());
  }
  /// Computes the oldest ones of a chunk, if any.
  bool weight(int chunk) {
    const auto found = std::ranges::find(owed_, chunk, &Owed::chunk);
    if (found == owed_.end()) return false;
    take(found);
    return true;
  }
  void forward_beside_backward(int forward_chunk, int backward_chunk) {
    forward(forward_chunk);
    slots_.back()->overlaps_next = true;
    backward(backward_chunk);
  }

  [[nodiscard]] int num_forwards(int chunk) const {
    return next_forward_[at(chunk)];
  }
  [[nodiscard]] PipelineSlots& slots() { return slots_; }

 private:
  struct Owed {
    int chunk;
    int micro_batch;
  };

  static std::size_t at(int chunk) { return static_cast<std::size_t>(chunk); }
  void add(ActionKind kind, int chunk, int micro_batch) {
    slots_.push_back(PipelineAction{
        .kind = kind, .chunk = chunk, .micro_batch = micro_batch});
  }
  void take(std::deque<Owed>::iterator owed) {
    add(ActionKind::backward_weight, owed->chunk, owed->micro_batch);
    owed_.erase(owed);
  }

  PipelineSlots slots_;
  std::array<int, 2> next_forward_{};
  std::array<int, 2> next_backward_{};
  std::deque<Owed> owed_;
};

}  // namespace

PipelineSlots zero_bubble_v_order(int rank, int p, int m) {
  // Enough to fill the pipeline; nonexistent micro-batches are left out.
  const int count = std::max(2 * p - 1, m);
  TwoChunks order;
  order.wait(rank);
  for (int i = 0; i < 2 * (p - rank) - 1; ++i) order.forward(0);
  for (int i = 0; i < rank; ++i) {
    order.forward(1);
    order.forward(0);
  }
  const auto compute = [&](int chunk) {
    order.input(chunk);
    order.weight(chunk);
  };
  for (int i = 0; i < p - rank; ++i) {
    order.forward(1);
    compute(1);
  }
  while (order.num_forwards(1) < order.num_forwards(0) ||
         order.num_forwards(0) < count) {
    if (order.num_forwards(0) < count) order.forward(0);
    compute(0);
    order.forward(1);
    compute(1);
  }
  for (int i = 0; i < rank; ++i) {
    order.input(0);
    order.input(1);
  }
  for (int i = 0; i < p - rank; ++i) {
    order.input(0);
    order.weight(0);
  }
  while (order.weight(1)) {
  }
  while (order.weight(0)) {
  }
  PipelineSlots slots = std::move(order.slots());
  for (auto& slot : slots) {
    if (slot && slot->micro_batch >= m) slot.reset();
  }
  return slots;
}

PipelineSlots dual_pipe_v_order(int rank, int p, int m) {
  const int hops = p - rank - 1;
  TwoChunks order;
  for (int i = 0; i < 2 * hops; ++i) order.forward(0);
  for (int i = 0; i < rank + 1; ++i) {
    order.forward(0);
    order.forward(1);
  }
  for (int i = 0; i < hops; ++i) {
    order.input(1);
    order.weight();
    order.forward(1);
  }
  for (int i = 0; i < m - 2 * p + rank + 1; ++i) {
    if (i == 0 && rank == p - 1) {
      // Not overlapped, which makes the bubble smaller.
      order.forward(0);
      order.backward(1);
    } else {
      order.forward_beside_backward(0, 1);
    }
    order.forward_beside_backward(1, 0);
  }
  for (int i = 0; i < hops; ++i) {
    order.backward(1);
    order.forward_beside_backward(1, 0);
  }
  bool divides = false;
  const auto compute = [&](int chunk) {
    if (divides) {
      order.input(chunk);
    } else {
      order.backward(chunk);
    }
  };
  for (int i = 0; i < rank + 1; ++i) {
    const bool is_middle = i == (rank + 1) / 2;
    if (is_middle && rank % 2 == 1) divides = true;
    compute(1);
    if (is_middle && rank % 2 == 0) divides = true;
    compute(0);
  }
  for (int i = 0; i < hops; ++i) {
    order.weight();
    compute(0);
  }
  for (int i = 0; i < rank + 1; ++i) order.weight();
  return std::move(order.slots());
}

}  // namespace accelerate::detail
