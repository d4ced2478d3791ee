#include "checkpoint/weights/shard_reader.h"

#include <cstring>
#include <set>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "base/text/text.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "comm/group/begun_exchange.h"

namespace accelerate::detail {

namespace {

constexpr std::int64_t kEndOfRequests = -1;

at::Tensor bytes_at(std::byte* data, std::int64_t count) {
  return at::from_blob(data, {count}, at::TensorOptions(at::kByte));
}

}  // namespace

ShardReader::ShardReader(
    Group group,
    std::vector<const Parameter*> rows,
    int reader,
    int first_tag)
    : group_(std::move(group)),
      rows_(std::move(rows)),
      reader_(reader),
      first_tag_(first_tag) {
  std::vector<std::int64_t> mine;
  for (const Parameter* row : rows_) append_box(mine, row->layout);
  const auto all = group_.all_gather_uneven(at::tensor(mine, at::kLong));
  if (!is_reader()) return;
  std::vector<std::span<const std::int64_t>> numbers;
  for (const at::Tensor& each : all) {
    numbers.emplace_back(
        each.const_data_ptr<std::int64_t>(),
        static_cast<std::size_t>(each.numel()));
  }
  for (const Parameter* row : rows_) {
    std::set<std::vector<std::int64_t>> known;
    std::vector<Holder>& holders = holders_.emplace_back();
    // The reader's own box comes first: its bytes need not be sent.
    for (int i = 0; i < group_.size(); ++i) {
      const int rank = (reader_ + i) % group_.size();
      auto& left = numbers[static_cast<std::size_t>(rank)];
      const auto before = left;
      BoxElements bytes(take_box(row->layout, left), row->local.element_size());
      const auto box = before.first(before.size() - left.size());
      if (bytes.count() > 0 && known.emplace(box.begin(), box.end()).second)
        holders.push_back({rank, std::move(bytes)});
    }
  }
}

at::Tensor ShardReader::own_bytes(
    std::size_t row,
    std::int64_t begin,
    std::int64_t count) const {
  return rows_[row]
      ->local.detach()
      .reshape(-1)
      .view(at::kByte)
      .narrow(0, begin, count)
      .to(at::kCPU);
}

void ShardReader::read(
    int rank,
    std::size_t row,
    std::int64_t begin,
    const at::Tensor& out) {
  if (rank == group_.rank()) {
    out.copy_(own_bytes(row, begin, out.numel()));
    return;
  }
  const at::Tensor wanted = at::tensor(
      {static_cast<std::int64_t>(row), begin, out.numel()}, at::kLong);
  BegunExchange::messages(
      group_,
      format("reading a shard of {}", rows_[row]->name),
      {{wanted, rank, first_tag_}},
      {{out, rank, first_tag_ + 1}})
      .wait();
}

void ShardReader::copy(
    std::size_t row,
    std::uint64_t begin,
    std::span<std::byte> out) {
  const std::lock_guard lock(mutex_);
  const auto from = static_cast<std::int64_t>(begin);
  const std::int64_t to = from + std::ssize(out);
  for (const auto& [rank, box] : holders_[row]) {
    const std::int64_t first = box.num_before(from);
    const std::int64_t last = box.num_before(to);
    if (first >= last) continue;
    if (box.is_run(first, last)) {
      read(
          rank,
          row,
          first,
          bytes_at(out.data() + (box.place_of(first) - from), last - first));
      continue;
    }
    const at::Tensor bytes = at::empty({last - first}, at::kByte);
    read(rank, row, first, bytes);
    const auto* const source =
        static_cast<const std::byte*>(bytes.const_data_ptr());
    box.for_each_run(first, last, [&](auto place, auto target, auto count) {
      std::memcpy(
          out.data() + (target - from),
          source + (place - first),
          static_cast<std::size_t>(count));
    });
  }
}

TensorToWrite ShardReader::to_write(std::size_t row) {
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

void ShardReader::finish() {
  const at::Tensor end =
      at::tensor({kEndOfRequests, kEndOfRequests, kEndOfRequests}, at::kLong);
  std::vector<PeerMessage> sends;
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (rank != reader_) sends.push_back({end, rank, first_tag_});
  }
  BegunExchange::messages(
      group_, "ending the reading of shards", std::move(sends), {})
      .wait();
}

void ShardReader::serve() {
  while (true) {
    const at::Tensor wanted = at::empty({3}, at::kLong);
    BegunExchange::messages(
        group_, "sending a shard", {}, {{wanted, reader_, first_tag_}})
        .wait();
    const auto* const values = wanted.const_data_ptr<std::int64_t>();
    if (values[0] == kEndOfRequests) return;
    const at::Tensor bytes =
        own_bytes(static_cast<std::size_t>(values[0]), values[1], values[2]);
    BegunExchange::messages(
        group_, "sending a shard", {{bytes, reader_, first_tag_ + 1}}, {})
        .wait();
  }
}

}  // namespace accelerate::detail
