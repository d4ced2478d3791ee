#include <accelerate/exported_pipeline.h>

#include <optional>
#include <string>
#include <vector>

#include "comm/mesh.h"
#include "exported/load/export_check.h"
#include "pipeline/automatic_split.h"
#include "pipeline/exported_layers.h"
#include "pipeline/split.h"
#include "precision/support.h"
#include "train/pipeline/division.h"
#include "train/session/session.h"

namespace accelerate {

namespace {

using namespace detail;

// The first modules of all requested stages but the first.
std::vector<std::string> split_points_of(
    const PipelineOptions& options,
    const Accelerator& accelerator,
    const PipelineLayers& blocks) {
  const PipelineSchedule schedule =
      schedule_of(options, accelerator.mesh().degree(Axis::pipeline));
  if (!options.split_points.empty()) {
    require_num_points(options.split_points.size(), schedule.num_stages());
    return options.split_points;
  }
  const auto begins =
      begins_of(options, accelerator, blocks.layers(), schedule);
  std::vector<std::string> points;
  for (std::size_t i = 1; i < begins.size(); ++i)
    points.push_back(blocks.layers()[begins[i]].name);
  return points;
}

}  // namespace

Pipeline make_pipeline(
    const Accelerator& accelerator,
    const ExportedModel& model,
    const PipelineOptions& options) {
  const Session& session = AcceleratorAccess::session(accelerator);
  std::optional<at::ScalarType> autocast;
  if (session.options.autocast.enabled)
    autocast = autocast_dtype(session.options.precision);
  for (const std::string& warning : export_warnings(*model, autocast)) {
    session.world.logger().log_once_per_world(
        LogLevel::warning, "exported", warning);
  }
  const PipelineLayers blocks =
      exported_layers(model, exported_split_points(model));
  PipelineOptions divided = complete(options, accelerator, blocks.layers());
  divided.split_points = split_points_of(divided, accelerator, blocks);
  divided.costs = {};
  return Pipeline(
      accelerator, exported_layers(model, divided.split_points), divided);
}

PippyModel prepare_pippy(
    const World& world,
    const ExportedModel& model,
    const PreparePippyOptions& options) {
  PreparePippyOptions divided = options;
  const bool is_auto = options.split_points.empty() ||
      options.split_points == std::vector<std::string>{"auto"};
  if (world.size() == 1) {
    divided.split_points = {};
  } else if (is_auto) {
    divided.split_points = automatic_split(
        exported_layers(model, exported_split_points(model)),
        options.no_split_module_classes,
        world.size());
  } else {
    require_num_points(options.split_points.size(), world.size());
  }
  return prepare_pippy(
      world, exported_layers(model, divided.split_points), divided);
}

}  // namespace accelerate
