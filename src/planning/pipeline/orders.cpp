#include "planning/pipeline/orders.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

namespace accelerate::detail {

namespace {

using ActionKind = PipelineActionKind;

// A chunk and a micro-batch.
using Item = std::pair<int, int>;

void add_wait(PipelineSlots& slots, int count) {
  slots.insert(
      slots.end(), static_cast<std::size_t>(std::max(count, 0)), std::nullopt);
}

void add_action(
    PipelineSlots& slots,
    ActionKind kind,
    int micro_batch,
    int chunk = 0) {
  slots.push_back(
      PipelineAction{.kind = kind, .chunk = chunk, .micro_batch = micro_batch});
}

// Number of micro-batches in each round.
std::vector<int> round_sizes(int p, int m) {
  const int num_rounds = std::max(1, m / p);
  std::vector<int> sizes(static_cast<std::size_t>(num_rounds), m / num_rounds);
  for (int i = 0; i < m % num_rounds; ++i) ++sizes[static_cast<std::size_t>(i)];
  return sizes;
}

// All chunks and micro-batches in the order of forwards, or of backwards.
std::vector<Item> items_in_rounds(
    const std::vector<int>& sizes,
    int num_chunks,
    bool is_forward) {
  std::vector<Item> items;
  int first = 0;
  for (const int size : sizes) {
    for (int i = 0; i < num_chunks; ++i) {
      const int chunk = is_forward ? i : num_chunks - 1 - i;
      for (int k = 0; k < size; ++k) items.emplace_back(chunk, first + k);
    }
    first += size;
  }
  return items;
}

}  // namespace

PipelineSlots gpipe_order(int rank, int p, int m) {
  PipelineSlots slots;
  add_wait(slots, rank);
  for (int i = 0; i < m; ++i) add_action(slots, ActionKind::forward, i);
  add_wait(slots, 3 * (p - 1 - rank));
  for (int i = 0; i < m; ++i) add_action(slots, ActionKind::backward, i);
  return slots;
}

PipelineSlots one_f_one_b_order(int rank, int p, int m) {
  PipelineSlots slots;
  add_wait(slots, rank);
  const int ahead = std::min(p - 1 - rank, m);
  for (int i = 0; i < ahead; ++i) add_action(slots, ActionKind::forward, i);
  add_wait(slots, 2 * (p - 1 - rank));
  for (int i = ahead; i < m; ++i) {
    add_action(slots, ActionKind::forward, i);
    add_action(slots, ActionKind::backward, i - ahead);
  }
  for (int i = m - ahead; i < m; ++i) {
    add_wait(slots, 1);
    add_action(slots, ActionKind::backward, i);
  }
  return slots;
}

PipelineSlots looped_bfs_order(int rank, int p, int m, int num_chunks) {
  PipelineSlots slots;
  add_wait(slots, rank);
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    for (int i = 0; i < m; ++i)
      add_action(slots, ActionKind::forward, i, chunk);
  }
  add_wait(slots, 2 * (p - 1 - rank));
  for (int chunk = num_chunks; chunk-- > 0;) {
    for (int i = m; i-- > 0;) add_action(slots, ActionKind::backward, i, chunk);
  }
  return slots;
}

// 1F1B with split backwards. Rank `rank` computes the gradients of weights
// `rank` micro-batches late, so that gradients of inputs reach rank 0 sooner
// and every rank keeps as many activations as rank 0.
PipelineSlots zero_bubble_order(int rank, int p, int m) {
  PipelineSlots slots;
  int forwards = 0;
  while (forwards < std::min(p - rank, m))
    add_action(slots, ActionKind::forward, forwards++);
  for (int i = 0; i < m; ++i) {
    add_action(slots, ActionKind::backward_input, i);
    if (i >= rank) add_action(slots, ActionKind::backward_weight, i - rank);
    if (forwards < m) add_action(slots, ActionKind::forward, forwards++);
  }
  for (int i = std::max(0, m - rank); i < m; ++i)
    add_action(slots, ActionKind::backward_weight, i);
  return slots;
}

PipelineSlots interleaved_order(
    int rank,
    int p,
    int m,
    int num_chunks,
    bool divides_backward) {
  const std::vector<int> sizes = round_sizes(p, m);
  const std::vector<Item> forwards =
      items_in_rounds(sizes, num_chunks, /*is_forward=*/true);
  const std::vector<Item> backwards =
      items_in_rounds(sizes, num_chunks, /*is_forward=*/false);
  const int total = m * num_chunks;
  const int hops = p - 1 - rank;
  const int warm_up = std::min(
      (num_chunks - 1) * sizes.front() + (divides_backward ? 1 : 2) * hops,
      total);
  PipelineSlots slots;
  const auto add_item = [&](ActionKind kind, const Item& item) {
    add_action(slots, kind, item.second, item.first);
  };
  std::size_t num_weights = 0;
  const auto add_backward = [&](int i) {
    const auto place = static_cast<std::size_t>(i);
    if (!divides_backward)
      return add_item(ActionKind::backward, backwards[place]);
    add_item(ActionKind::backward_input, backwards[place]);
    if (i >= rank)
      add_item(ActionKind::backward_weight, backwards[num_weights++]);
  };
  add_wait(slots, rank);
  for (int i = 0; i < warm_up; ++i)
    add_item(ActionKind::forward, forwards[static_cast<std::size_t>(i)]);
  if (warm_up > 0) {
    add_wait(
        slots,
        divides_backward ? hops : num_chunks * p + 2 * hops - (warm_up + rank));
  }
  for (int i = warm_up; i < total; ++i) {
    add_item(ActionKind::forward, forwards[static_cast<std::size_t>(i)]);
    add_backward(i - warm_up);
  }
  for (int i = total - warm_up; i < total; ++i) {
    if (!divides_backward) add_wait(slots, 1);
    add_backward(i);
  }
  while (divides_backward && num_weights < backwards.size())
    add_item(ActionKind::backward_weight, backwards[num_weights++]);
  return slots;
}

std::vector<PipelineSlots> with_waits(
    const std::vector<PipelineSlots>& orders,
    int num_chunks) {
  const std::size_t p = orders.size();
  std::set<std::pair<int, int>> forwards;  // stage, micro-batch
  std::vector<PipelineSlots> waiting(p);
  std::vector<std::size_t> next(p, 0);
  const int num_stages = static_cast<int>(p) * num_chunks;
  for (bool has_moved = true; std::exchange(has_moved, false);) {
    std::vector<std::pair<int, int>> done;
    for (std::size_t rank = 0; rank < p; ++rank) {
      if (next[rank] == orders[rank].size()) continue;
      has_moved = true;
      const auto& slot = orders[rank][next[rank]];
      if (slot && slot->kind == ActionKind::forward) {
        const int stage =
            slot->chunk * static_cast<int>(p) + static_cast<int>(rank);
        if (stage > 0 && !forwards.contains({stage - 1, slot->micro_batch})) {
          waiting[rank].push_back(std::nullopt);
          continue;
        }
        if (stage < num_stages) done.emplace_back(stage, slot->micro_batch);
      }
      waiting[rank].push_back(slot);
      ++next[rank];
    }
    forwards.insert(done.begin(), done.end());
  }
  return waiting;
}

}  // namespace accelerate::detail
