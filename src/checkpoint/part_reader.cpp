#include "checkpoint/part_reader.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "checkpoint/tensor_bytes.h"
#include "comm/exchange.h"

namespace accelerate::detail {

namespace {

constexpr std::int64_t kNoMore = -1;

at::Tensor bytes_at(std::byte* data, std::int64_t count) {
  return at::from_blob(data, {count}, at::TensorOptions(at::kByte));
}

}  // namespace

PartReader::PartReader(
    Group group,
    std::vector<const Parameter*> rows,
    int reader,
    int first_tag)
    : group_(std::move(group)),
      rows_(std::move(rows)),
      reader_(reader),
      first_tag_(first_tag) {
  std::vector<std::int64_t> mine;
  for (const Parameter* row : rows_) {
    const Layout& layout = row->layout;
    for (std::size_t axis = 1; axis < layout.extent.size(); ++axis) {
      if (layout.extent[axis] == layout.global_shape[axis]) continue;
      throw InternalError(
          concat("[checkpoint] ", row->name, " is split along another axis"));
    }
    mine.push_back(layout.offset[0]);
    mine.push_back(layout.offset[0] + layout.extent[0]);
  }
  for (const at::Tensor& of_rank :
       group_.all_gather(at::tensor(mine, at::kLong))) {
    const auto* const values = of_rank.const_data_ptr<std::int64_t>();
    std::vector<Box>& boxes = boxes_.emplace_back();
    for (std::size_t row = 0; row < rows_.size(); ++row)
      boxes.push_back({values[2 * row], values[2 * row + 1]});
  }
}

std::int64_t PartReader::bytes_per_index(std::size_t row) const {
  const Layout& layout = rows_[row]->layout;
  std::int64_t bytes = rows_[row]->local.element_size();
  for (std::size_t axis = 1; axis < layout.global_shape.size(); ++axis)
    bytes *= layout.global_shape[axis];
  return bytes;
}

at::Tensor PartReader::own_bytes(
    std::size_t row,
    std::int64_t begin,
    std::int64_t count) const {
  return rows_[row]
      ->local.detach()
      .view(-1)
      .view(at::kByte)
      .narrow(0, begin, count)
      .to(at::kCPU);
}

void PartReader::copy(
    std::size_t row,
    std::uint64_t begin,
    std::span<std::byte> out) {
  const std::lock_guard lock(mutex_);
  const std::int64_t width = bytes_per_index(row);
  const auto from = static_cast<std::int64_t>(begin);
  const std::int64_t to = from + std::ssize(out);
  for (int rank = 0; rank < group_.size(); ++rank) {
    const Box box = boxes_[static_cast<std::size_t>(rank)][row];
    const std::int64_t first = std::max(from, box.begin * width);
    const std::int64_t last = std::min(to, box.end * width);
    if (first >= last) continue;
    std::byte* const target = out.data() + (first - from);
    const std::int64_t inside = first - box.begin * width;
    const std::int64_t count = last - first;
    if (rank == group_.rank()) {
      bytes_at(target, count).copy_(own_bytes(row, inside, count));
      continue;
    }
    Exchange exchange(group_, concat("reading a part of ", rows_[row]->name));
    const at::Tensor wanted =
        at::tensor({static_cast<std::int64_t>(row), inside, count}, at::kLong);
    exchange.receive(bytes_at(target, count), rank, first_tag_ + 1);
    exchange.send(wanted, rank, first_tag_);
    exchange.wait();
  }
}

TensorToWrite PartReader::to_write(std::size_t row) {
  const Parameter& parameter = *rows_[row];
  const at::Tensor like = at::empty(
      parameter.layout.global_shape,
      parameter.local.options().device(at::kMeta).requires_grad(false));
  TensorToWrite wanted = described(parameter.name, like);
  wanted.bytes.copy = [this, row](
                          std::uint64_t begin, std::span<std::byte> out) {
    copy(row, begin, out);
  };
  return wanted;
}

void PartReader::finish() {
  Exchange exchange(group_, "ending the reading of parts");
  const at::Tensor end = at::tensor({kNoMore, kNoMore, kNoMore}, at::kLong);
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (rank != reader_) exchange.send(end, rank, first_tag_);
  }
  exchange.wait();
}

void PartReader::serve() {
  while (true) {
    Exchange exchange(group_, "giving a part of a tensor");
    const at::Tensor wanted = at::empty({3}, at::kLong);
    exchange.receive(wanted, reader_, first_tag_);
    exchange.wait();
    const auto* const values = wanted.const_data_ptr<std::int64_t>();
    if (values[0] == kNoMore) return;
    exchange.send(
        own_bytes(static_cast<std::size_t>(values[0]), values[1], values[2]),
        reader_,
        first_tag_ + 1);
    exchange.wait();
  }
}

}  // namespace accelerate::detail
