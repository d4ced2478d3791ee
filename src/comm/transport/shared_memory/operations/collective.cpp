#include "comm/transport/shared_memory/operations/collective.h"

#include <array>
#include <string_view>

#include <c10/core/ScalarType.h>

#include "base/text/text.h"
#include "comm/transport/shared_memory/operations/failure.h"

namespace accelerate::detail {

namespace {

constexpr std::array<std::string_view, 9> kKinds{
    "barrier",
    "broadcast",
    "all_gather",
    "gather",
    "scatter",
    "all_to_all",
    "all_reduce",
    "reduce",
    "reduce_scatter"};
constexpr std::array<std::string_view, 8> kOps{
    "sum",
    "mean",
    "product",
    "min",
    "max",
    "bit_and",
    "bit_or",
    "bit_xor"};

bool is_reduction(const CollectiveStamp& stamp) {
  return stamp.kind >= static_cast<std::uint8_t>(CollectiveKind::all_reduce);
}

}  // namespace

std::string describe(const CollectiveStamp& stamp) {
  if (stamp.kind >= kKinds.size()) return "something unknown";
  std::string text(kKinds[stamp.kind]);
  const auto kind = static_cast<CollectiveKind>(stamp.kind);
  if (kind == CollectiveKind::barrier) return text;
  // In an all_to_all, ranks may send different numbers of bytes.
  if (kind != CollectiveKind::all_to_all)
    text += format(" of {} bytes", stamp.bytes);
  text +=
      format(" ({}", c10::toString(static_cast<at::ScalarType>(stamp.dtype)));
  if (stamp.num_dims > 0) {
    std::vector<std::string> sizes;
    for (std::size_t i = 0; i < stamp.num_dims && i < stamp.sizes.size(); ++i)
      sizes.push_back(std::to_string(stamp.sizes[i]));
    text += format(" [{}]", join(sizes, ", "));
  }
  if (is_reduction(stamp) && stamp.op < kOps.size())
    text += format(", {}", kOps[stamp.op]);
  text += ")";
  if (stamp.root >= 0) text += format(", root {}", stamp.root);
  return text;
}

std::string Collective::describe() const {
  return detail::describe(shape_.stamp);
}

bool Collective::advance(Fabric& fabric) {
  if (!has_begun_) {
    shape_ = begin(fabric);
    num_steps_ = shape_.num_steps;
    shape_.stamp.sequence = fabric.take_sequence();
    first_step_ = fabric.next_step();
    has_begun_ = true;
  }
  bool has_moved = false;
  while (!is_complete() &&
         (try_read(fabric) || try_combine(fabric) || try_write(fabric)))
    has_moved = true;
  if (is_complete()) fabric.set_next_step(first_step_ + num_steps_);
  return has_moved;
}

bool Collective::try_write(Fabric& fabric) {
  if (next_written_ == num_steps_) return false;
  const std::uint64_t step = first_step_ + next_written_;
  // The slot was last used two steps ago.
  for (int rank = 0; rank < fabric.size(); ++rank) {
    if (fabric.page(rank).done.load(std::memory_order_acquire) + 1 < step)
      return false;
  }
  RankPage& own = fabric.own_page();
  if (next_written_ == 0)
    own.calls[step % 2] = {.stamp = shape_.stamp, .note = shape_.note};
  write(fabric, next_written_, fabric.slot(fabric.rank(), step));
  ++next_written_;
  fabric.publish(own.written, step + 1);
  if (shape_.awaited == kNoRank) {
    next_combined_ = next_done_ = next_written_;
    fabric.publish(own.done, step + 1);
  }
  return true;
}

bool Collective::try_combine(Fabric& fabric) {
  if (!shape_.combines || next_combined_ == next_written_) return false;
  const std::uint64_t step = first_step_ + next_combined_;
  if (!have_all(fabric, &RankPage::written, step + 1)) return false;
  compare_stamps(fabric);
  combine(fabric, next_combined_);
  ++next_combined_;
  fabric.publish(fabric.own_page().combined, step + 1);
  return true;
}

bool Collective::try_read(Fabric& fabric) {
  const std::uint64_t ready = shape_.combines ? next_combined_ : next_written_;
  if (next_done_ == ready) return false;
  const std::uint64_t step = first_step_ + next_done_;
  const auto counter =
      shape_.combines ? &RankPage::combined : &RankPage::written;
  if (!have_all(fabric, counter, step + 1)) return false;
  compare_stamps(fabric);
  read(fabric, next_done_);
  ++next_done_;
  fabric.publish(fabric.own_page().done, step + 1);
  return true;
}

bool Collective::is_awaited(const Fabric& fabric, int rank) const {
  return rank != fabric.rank() &&
      (shape_.awaited == kAllRanks || shape_.awaited == rank);
}

bool Collective::have_all(
    const Fabric& fabric,
    std::atomic<std::uint64_t> RankPage::*counter,
    std::uint64_t value) const {
  for (int rank = 0; rank < fabric.size(); ++rank) {
    if (is_awaited(fabric, rank) &&
        (fabric.page(rank).*counter).load(std::memory_order_acquire) < value)
      return false;
  }
  return true;
}

void Collective::compare_stamps(Fabric& fabric) {
  if (are_compared_) return;
  for (int rank = 0; rank < fabric.size(); ++rank) {
    if (!is_awaited(fabric, rank)) continue;
    const CollectiveStamp& other =
        fabric.page(rank).calls[first_step_ % 2].stamp;
    if (other == shape_.stamp) continue;
    throw DisagreementError(
        rank, detail::describe(shape_.stamp), detail::describe(other));
  }
  are_compared_ = true;
  num_steps_ = settle(fabric, num_steps_);
}

void Collective::list_awaited(const Fabric& fabric, std::vector<int>& ranks)
    const {
  const std::uint64_t step = first_step_;
  for (int rank = 0; rank < fabric.size(); ++rank) {
    if (rank == fabric.rank()) continue;
    const RankPage& page = fabric.page(rank);
    const bool blocks_write = next_written_ < num_steps_ &&
        page.done.load() + 1 < step + next_written_;
    const bool blocks_combine = shape_.combines &&
        next_combined_ < next_written_ && is_awaited(fabric, rank) &&
        page.written.load() < step + next_combined_ + 1;
    const auto counter =
        shape_.combines ? &RankPage::combined : &RankPage::written;
    const bool blocks_read = next_done_ < next_written_ &&
        is_awaited(fabric, rank) &&
        (page.*counter).load() < step + next_done_ + 1;
    if (blocks_write || blocks_combine || blocks_read) ranks.push_back(rank);
  }
}

}  // namespace accelerate::detail
