#include "parallel/plan/degrees.h"

#include <algorithm>
#include <optional>

#include "base/text/text.h"
#include "comm/mesh.h"
#include "parallel/plan/plan.h"

namespace accelerate::detail {

namespace {

struct DegreeRow {
  Axis axis;
  /// Returns what is wrong with a degree above 1; null if it is always valid.
  std::optional<std::string> (*complain)(const PlanRequest&) = nullptr;
};

std::optional<std::string> complain_of_plan(const PlanRequest& request) {
  if (request.training.parallelize_plan || request.training.infers_plan)
    return std::nullopt;
  return "[parallel] tensor was asked for, but nothing says which layers are "
         "split; give ParallelOptions::parallelize_plan, or set tensor to 1";
}

constexpr DegreeRow kDegrees[] = {
    {Axis::pipeline},
    {Axis::tensor, &complain_of_plan},
    {Axis::context},
    {Axis::expert},
    {Axis::shard},
    {Axis::replicate},
};

int& at_axis(Degrees& degrees, Axis axis) {
  return degrees[static_cast<std::size_t>(axis)];
}

// Assigns the remaining ranks to the degrees left unset.
void fill_up(
    Degrees& degrees,
    bool replicate_is_open,
    bool shard_is_open,
    ShardSpan span,
    const PlanRequest& request) {
  int others = 1;
  for (const int degree : dense_grid(degrees)) others *= degree;
  if (others < 1 || request.num_ranks % others != 0) return;
  int left = request.num_ranks / others;
  if (shard_is_open) {
    const bool is_hybrid = span == ShardSpan::node && replicate_is_open &&
        left % request.num_local_ranks == 0;
    at_axis(degrees, Axis::shard) = is_hybrid ? request.num_local_ranks : left;
    left /= at_axis(degrees, Axis::shard);
  }
  if (replicate_is_open) at_axis(degrees, Axis::replicate) = left;
}

}  // namespace

Degrees choose_degrees(
    const PlanRequest& request,
    std::vector<std::string>& complaints) {
  const TrainingRequest& training = request.training;
  const ShardSpan span =
      training.sharding ? training.sharding->span : ShardSpan::none;
  Degrees degrees;
  degrees.fill(1);
  bool replicate_is_open = false, shard_is_open = false;
  for (const DegreeRow& row : kDegrees) {
    const std::optional<int>& degree = training.degree(row.axis);
    if (degree && *degree < 1) {
      complaints.push_back(format(
          "[parallel] the degree {} must be at least 1, but is {}",
          name_of(row.axis),
          *degree));
    } else if (row.axis == Axis::replicate && !degree) {
      replicate_is_open = true;
    } else if (row.axis == Axis::shard && !degree && span != ShardSpan::none) {
      shard_is_open = true;
    } else {
      at_axis(degrees, row.axis) = degree.value_or(1);
    }
  }
  fill_up(degrees, replicate_is_open, shard_is_open, span, request);
  for (const DegreeRow& row : kDegrees) {
    const bool is_added = std::any_of(
        request.added.begin(),
        request.added.end(),
        [&](const AddedTechnique& added) { return added.axis == row.axis; });
    if (at_axis(degrees, row.axis) == 1 || row.complain == nullptr || is_added)
      continue;
    if (auto complaint = row.complain(request))
      complaints.push_back(*std::move(complaint));
  }
  if (auto complaint = mesh_complaint(degrees, request.num_ranks))
    complaints.push_back(*std::move(complaint));
  return degrees;
}

}  // namespace accelerate::detail
