#include "parallel/first_values.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <ATen/Functions.h>

#include "base/text.h"
#include "comm/exchange.h"
#include "parallel/same_model.h"
#include "params/materialize.h"

namespace accelerate::detail {

namespace {

// Before any that a mesh gives.
constexpr int kTag = 0;

}  // namespace

FirstValues::FirstValues(
    const Mesh& mesh,
    const Group& data_group,
    const ParameterTable& table)
    : mesh_(mesh), data_group_(data_group) {
  std::vector<std::uint8_t> is_empty;
  for (const Parameter& row : table.rows())
    is_empty.push_back(row.tensor.is_meta() ? 1 : 0);
  const auto all = data_group_.all_gather(at::tensor(is_empty, at::kByte));
  for (std::size_t i = 0; i < is_empty.size(); ++i) {
    const auto lacks = [&](const at::Tensor& of_rank) {
      return of_rank.const_data_ptr<std::uint8_t>()[i] != 0;
    };
    Origin origin = Origin::rank_0_to_all;
    if (lacks(all[0])) {
      origin = Origin::nowhere;
    } else if (std::any_of(all.begin(), all.end(), lacks)) {
      origin = Origin::rank_0_to_parts;
    }
    origins_.emplace(table.rows()[i].name, origin);
  }
}

void FirstValues::make_whole(const Parameter& row) {
  if (row.tensor.is_meta()) {
    materialize(row.tensor, mesh_.world().device());
    row.tensor.detach().zero_();
  }
  Origin& origin = origins_.at(row.name);
  if (origin == Origin::rank_0_to_parts) origin = Origin::rank_0_to_all;
}

void FirstValues::broadcast(const ParameterTable& table) const {
  std::vector<at::Tensor> tensors;
  for (const Parameter& row : table.rows()) {
    if (origins_.at(row.name) == Origin::rank_0_to_all)
      tensors.push_back(row.tensor.detach());
  }
  broadcast_all(data_group_, tensors);
}

at::Tensor FirstValues::own_rows(
    const Parameter& row,
    const ShardedParameter& parameter) const {
  const int rank = mesh_.group(Axis::shard).rank();
  const bool is_sent = origins_.at(row.name) == Origin::rank_0_to_parts;
  const bool is_sender = data_group_.rank() == 0;
  if (is_sent && is_sender) send_rows(row, parameter);
  if (!row.tensor.is_meta() && (!is_sent || is_sender))
    return parameter.rows_of(row.tensor.detach(), rank);
  const at::Tensor rows = at::zeros(
      parameter.rows_of(row.tensor, rank).sizes(),
      at::TensorOptions(row.tensor.scalar_type()));
  if (is_sent) {
    Exchange exchange(data_group_, concat("receiving ", row.name));
    exchange.receive(rows, 0, kTag);
    exchange.wait();
  }
  return rows.to(mesh_.world().device());
}

void FirstValues::send_rows(
    const Parameter& row,
    const ShardedParameter& parameter) const {
  Exchange exchange(data_group_, concat("sending ", row.name));
  const at::Tensor whole = row.tensor.detach().cpu().contiguous();
  // Shards are neighbours.
  const int num_parts = mesh_.degree(Axis::shard);
  for (int rank = 1; rank < data_group_.size(); ++rank) {
    exchange.send(parameter.rows_of(whole, rank % num_parts), rank, kTag);
  }
  exchange.wait();
}

}  // namespace accelerate::detail
