#include "parallel/shard/row_pack.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>
#include <c10/util/accumulate.h>

namespace accelerate::detail {

namespace {

// Every dtype can be viewed there.
constexpr std::int64_t kRowAlignment = 16;

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
}

}  // namespace

bool are_even(const std::vector<std::int64_t>& begins) {
  return begins.back() % static_cast<std::int64_t>(begins.size() - 1) == 0;
}

std::int64_t RowPack::Entry::num_rows(int rank) const {
  const auto r = static_cast<std::size_t>(rank);
  return (*begins)[r + 1] - (*begins)[r];
}

void RowPack::add(
    at::IntArrayRef sizes,
    at::ScalarType dtype,
    const std::vector<std::int64_t>& begins) {
  const Entry entry{
      part_bytes_,
      c10::multiply_integers(sizes.slice(1)) *
          static_cast<std::int64_t>(c10::elementSize(dtype)),
      dtype,
      &begins};
  std::int64_t most_rows = 0;
  for (int rank = 0; rank < num_ranks_; ++rank)
    most_rows = std::max(most_rows, entry.num_rows(rank));
  part_bytes_ += aligned(most_rows * entry.row_bytes);
  entries_.push_back(entry);
}

std::int64_t RowPack::add_to_all(std::int64_t count, at::ScalarType dtype) {
  const std::int64_t begin = part_bytes_;
  part_bytes_ +=
      aligned(count * static_cast<std::int64_t>(c10::elementSize(dtype)));
  return begin;
}

at::Tensor RowPack::make(c10::Device device) const {
  return at::empty(
      {num_ranks_, part_bytes_}, at::TensorOptions(at::kByte).device(device));
}

at::Tensor RowPack::rows_in(const at::Tensor& part, std::size_t i, int rank)
    const {
  const Entry& entry = entries_[i];
  return part.narrow(0, entry.begin, entry.num_rows(rank) * entry.row_bytes)
      .view(entry.dtype);
}

template <class Copy>
void RowPack::for_each_view(
    const at::Tensor& pack,
    std::size_t i,
    const at::Tensor& full,
    Copy&& copy) const {
  const Entry& entry = entries_[i];
  if (full.numel() == 0) return;
  if (are_even(*entry.begins)) {
    const at::Tensor in_pack =
        pack.narrow(1, entry.begin, entry.num_rows(0) * entry.row_bytes)
            .view(entry.dtype);
    copy(in_pack, full.view(in_pack.sizes()));
    return;
  }
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const std::int64_t num_rows = entry.num_rows(rank);
    if (num_rows == 0) continue;
    copy(
        rows_in(pack.select(0, rank), i, rank),
        full.narrow(
                0, (*entry.begins)[static_cast<std::size_t>(rank)], num_rows)
            .view(-1));
  }
}

void RowPack::pack(
    const at::Tensor& pack,
    std::size_t i,
    const at::Tensor& full) const {
  for_each_view(
      pack, i, full, [](const at::Tensor& to, const at::Tensor& from) {
        to.copy_(from);
      });
}

void RowPack::unpack(
    const at::Tensor& pack,
    std::size_t i,
    const at::Tensor& full) const {
  for_each_view(
      pack, i, full, [](const at::Tensor& from, const at::Tensor& to) {
        to.copy_(from);
      });
}

}  // namespace accelerate::detail
