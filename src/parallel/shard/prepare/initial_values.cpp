#include "parallel/shard/prepare/initial_values.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/Functions.h>

#include "base/text/text.h"
#include "comm/group/begun_exchange.h"
#include "comm/mesh.h"
#include "parallel/replicate/same_model.h"
#include "params/materialize.h"

namespace accelerate::detail {

namespace {

// Comes before all tags that a mesh reserves.
constexpr int kTag = 0;

}  // namespace

InitialValues::InitialValues(const Mesh& mesh, const ParameterTable& table)
    : mesh_(mesh) {
  for (const auto& [axes, rows] : rows_by_axes(table)) {
    std::vector<std::uint8_t> is_empty;
    for (const Parameter* row : rows)
      is_empty.push_back(row->tensor.is_meta() ? 1 : 0);
    const auto by_rank = replica_group(rows.front()->layout, mesh_)
                             .all_gather(at::tensor(is_empty, at::kByte));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto lacks_memory = [&](const at::Tensor& flags) {
        return flags.const_data_ptr<std::uint8_t>()[i] != 0;
      };
      Origin origin = Origin::rank_0_to_all;
      if (lacks_memory(by_rank[0])) {
        origin = Origin::nowhere;
      } else if (std::any_of(by_rank.begin(), by_rank.end(), lacks_memory)) {
        origin = Origin::rank_0_to_shards;
      }
      origins_.emplace(rows[i]->name, origin);
    }
  }
}

void InitialValues::make_full(const Parameter& row) {
  if (row.tensor.is_meta()) {
    materialize(row.tensor, mesh_.world().device());
    row.tensor.detach().zero_();
  }
  Origin& origin = origins_.at(row.name);
  if (origin == Origin::rank_0_to_shards) origin = Origin::rank_0_to_all;
}

void InitialValues::broadcast(const ParameterTable& table) const {
  RowsByAxes rows = rows_by_axes(table);
  for (auto& [axes, same_split] : rows) {
    std::erase_if(same_split, [&](const Parameter* row) {
      return origins_.at(row->name) != Origin::rank_0_to_all;
    });
  }
  broadcast_rows(mesh_, rows);
}

at::Tensor InitialValues::own_box(
    const Parameter& row,
    Axis axis,
    std::int64_t dim,
    const std::vector<std::int64_t>& begins) const {
  return box_of_rank(row, axis, [&](const at::Tensor& full, int place) {
    const auto p = static_cast<std::size_t>(place);
    return full.narrow(dim, begins[p], begins[p + 1] - begins[p]);
  });
}

at::Tensor InitialValues::own_rows(
    const Parameter& row,
    Axis axis,
    const std::vector<std::vector<IndexRange>>& ranges) const {
  return box_of_rank(row, axis, [&](const at::Tensor& full, int place) {
    std::vector<at::Tensor> pieces;
    for (const auto& [first, last] : ranges[static_cast<std::size_t>(place)])
      pieces.push_back(full.narrow(0, first, last - first));
    return at::cat(pieces);
  });
}

at::Tensor InitialValues::box_of_rank(
    const Parameter& row,
    Axis axis,
    c10::function_ref<at::Tensor(const at::Tensor& full, int place)> box_of)
    const {
  const Group group = replica_group(row.layout, mesh_);
  const Mesh mesh = placement_mesh(row.layout, mesh_);
  const bool is_sent = origins_.at(row.name) == Origin::rank_0_to_shards;
  const bool is_sender = group.rank() == 0;
  if (is_sent && is_sender) {
    const at::Tensor full = row.tensor.detach();
    std::vector<PeerMessage> sends;
    for (int rank = 1; rank < group.size(); ++rank) {
      const int world_rank =
          group.world_ranks()[static_cast<std::size_t>(rank)];
      const int place = coordinate_of(mesh, world_rank, axis);
      sends.push_back({box_of(full, place).contiguous(), rank, kTag});
    }
    BegunExchange::messages(
        group, format("sending {}", row.name), std::move(sends), {})
        .wait();
  }
  const int own = mesh.coordinate(axis);
  if (!row.tensor.is_meta() && (!is_sent || is_sender))
    return box_of(row.tensor.detach(), own);
  const at::Tensor box = at::zeros(
      box_of(row.tensor, own).sizes(),
      at::TensorOptions(row.tensor.scalar_type())
          .device(mesh_.world().device()));
  if (is_sent) {
    BegunExchange::messages(
        group, format("receiving {}", row.name), {}, {{box, 0, kTag}})
        .wait();
  }
  return box;
}

}  // namespace accelerate::detail
