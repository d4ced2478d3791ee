#include "parallel/replicate/same_model.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/group/group_impl.h"

namespace accelerate::detail {

namespace {

constexpr std::size_t kBroadcastBytes = 250 << 20;

// The elements of an expanded view, each once: the view cannot be written to.
at::Tensor distinct_elements(at::Tensor tensor) {
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1)
      tensor = tensor.narrow(dim, 0, 1);
  }
  return tensor;
}

}  // namespace

// Broadcasting between different models would hang or mix up their weights.
void require_same_model(
    const Group& group,
    const ParameterTable& table,
    const std::vector<at::Tensor>& buffers) {
  std::string mine;
  for (const Parameter& row : table.rows()) {
    mine += format(
        "{} {} {}{}\n",
        row.name,
        c10::toString(row.tensor.scalar_type()),
        at::IntArrayRef(row.layout.global_shape),
        row.tensor.requires_grad() ? "" : " frozen");
  }
  for (const at::Tensor& buffer : buffers) {
    mine += format(
        "buffer {} {}\n", c10::toString(buffer.scalar_type()), buffer.sizes());
  }
  const std::vector<std::string> all = group.all_gather_bytes(mine);
  std::vector<std::string> complaints;
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const std::vector<std::string> first = split(all[0], '\n');
    const std::vector<std::string> other = split(all[rank], '\n');
    std::size_t line = 0;
    while (line < std::min(first.size(), other.size()) &&
           first[line] == other[line])
      ++line;
    const auto at = [&](const std::vector<std::string>& lines) {
      return line < lines.size() && !lines[line].empty()
          ? lines[line]
          : std::string("nothing");
    };
    complaints.push_back(format(
        "[parallel] the model of rank {} is not that of rank {}: it has \"{}\" "
        "where rank {} has \"{}\"; build the same model on all ranks",
        group.world_ranks()[rank],
        group.world_ranks()[0],
        at(other),
        group.world_ranks()[0],
        at(first)));
  }
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));
}

void broadcast_all(
    const Group& group,
    const std::vector<at::Tensor>& given,
    int from) {
  if (given.empty() || group.size() == 1) return;
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& tensor : given)
    tensors.push_back(distinct_elements(tensor));
  const bool is_on_host = std::ranges::all_of(
      tensors, [](const at::Tensor& tensor) { return tensor.is_cpu(); });
  if (!is_on_host) {
    for (const at::Tensor& tensor : tensors) group.broadcast(tensor, from);
    return;
  }
  c10d::broadcast_coalesced(
      group.impl()->process_group, tensors, kBroadcastBytes, from);
}

RowsByAxes rows_by_axes(const ParameterTable& table) {
  RowsByAxes rows;
  for (const Parameter& row : table.rows())
    rows[row.layout.split_axes].push_back(&row);
  return rows;
}

void broadcast_rows(const Mesh& mesh, const RowsByAxes& rows) {
  for (const auto& [axes, same_split] : rows) {
    std::vector<at::Tensor> tensors;
    for (const Parameter* row : same_split)
      tensors.push_back(row->tensor.detach());
    if (!same_split.empty())
      broadcast_all(replica_group(same_split.front()->layout, mesh), tensors);
  }
}

}  // namespace accelerate::detail
