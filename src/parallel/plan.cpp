#include "parallel/plan.h"

#include <string>

#include <accelerate/error.h>

#include "base/text.h"
#include "comm/mesh.h"
#include "parallel/master_weights.h"
#include "parallel/replicate.h"

namespace accelerate::detail {

namespace {

using Validate = std::optional<std::string> (*)(const ParallelOptions&);
using Make = std::unique_ptr<Strategy> (*)(const Mesh&, const ParallelOptions&);

struct StrategyRow {
  Axis axis;
  std::string_view option;  // the launcher's name for the degree
  std::optional<int> ParallelOptions::*degree;
  Validate validate;
  Make make;
};

// What this version cannot do yet refuses here, before anything is touched.
template <Axis axis>
std::optional<std::string> validate_absent(const ParallelOptions&) {
  return concat(
      "[parallel] ",
      name_of(axis),
      " was asked for, which this version does not have; set ",
      name_of(axis),
      " to 1");
}

// The only list of techniques. Order of rows is order of application.
constexpr StrategyRow kStrategies[] = {
    {Axis::pipeline,
     "parallelism_config_pp_size",
     &ParallelOptions::pipeline,
     &validate_absent<Axis::pipeline>,
     nullptr},
    {Axis::tensor,
     "parallelism_config_tp_size",
     &ParallelOptions::tensor,
     &validate_absent<Axis::tensor>,
     nullptr},
    {Axis::context,
     "parallelism_config_cp_size",
     &ParallelOptions::context,
     &validate_absent<Axis::context>,
     nullptr},
    {Axis::shard,
     "parallelism_config_dp_shard_size",
     &ParallelOptions::shard,
     &validate_absent<Axis::shard>,
     nullptr},
    {Axis::replicate,
     "parallelism_config_dp_replicate_size",
     &ParallelOptions::replicate,
     &validate_replicate,
     &make_replicate},
};

std::optional<int> asked_degree(
    const StrategyRow& row,
    const ParallelOptions& options,
    const Settings& settings) {
  if (const auto degree = options.*row.degree) return degree;
  if (const auto degree = settings.integer(row.option))
    return static_cast<int>(*degree);
  return std::nullopt;
}

}  // namespace

std::array<int, kNumAxes> plan_degrees(
    const ParallelOptions& options,
    const Settings& settings,
    int world_size) {
  std::array<int, kNumAxes> degrees{};
  degrees.fill(1);
  int others = 1;
  bool replicate_is_open = false;
  std::vector<std::string> complaints;
  for (const StrategyRow& row : kStrategies) {
    const auto degree = asked_degree(row, options, settings);
    if (degree && *degree < 1) {
      complaints.push_back(concat(
          "[parallel] ",
          name_of(row.axis),
          " is ",
          *degree,
          "; a degree is at least 1"));
      continue;
    }
    if (row.axis == Axis::replicate && !degree) {
      replicate_is_open = true;
      continue;
    }
    degrees[static_cast<std::size_t>(row.axis)] = degree.value_or(1);
    if (row.axis != Axis::replicate) others *= degree.value_or(1);
  }
  if (replicate_is_open && others > 0 && world_size % others == 0) {
    degrees[static_cast<std::size_t>(Axis::replicate)] = world_size / others;
  }
  for (const StrategyRow& row : kStrategies) {
    if (degrees[static_cast<std::size_t>(row.axis)] == 1) continue;
    if (auto complaint = row.validate(options))
      complaints.push_back(*std::move(complaint));
  }
  if (auto complaint = mesh_complaint(degrees, world_size)) {
    complaints.push_back(*std::move(complaint));
  }
  if (!complaints.empty()) throw ConfigError(join(complaints, "\n"));
  return degrees;
}

std::vector<std::unique_ptr<Strategy>> make_strategies(
    const Mesh& mesh,
    const TechniqueOptions& options) {
  std::vector<std::unique_ptr<Strategy>> strategies;
  // First, so that after a backward it comes last: ranks agree in the model's
  // own dtype.
  if (options.master_weights) strategies.push_back(make_master_weights());
  for (const StrategyRow& row : kStrategies) {
    if (mesh.degree(row.axis) > 1)
      strategies.push_back(row.make(mesh, options.parallel));
  }
  return strategies;
}

}  // namespace accelerate::detail
