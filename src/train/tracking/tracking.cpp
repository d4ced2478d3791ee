#include <accelerate/accelerator.h>
#include <accelerate/version.h>

#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/version.h>

#include "base/text/text.h"
#include "checkpoint/components/states.h"
#include "track/run_name.h"
#include "track/run_tracking.h"
#include "train/session/session.h"
#include "train/tracking/run_state.h"

namespace accelerate {

namespace {

using detail::Session;

template <class Content>
void push(
    Session& session,
    Content content,
    std::optional<std::int64_t> step,
    const std::string& name = {},
    const TrackerKwargs& log_kwargs = {}) {
  if (!session.services.tracking->is_active()) return;
  // Constructed in place: loops log every few microseconds.
  const auto item = std::make_shared<TrackedItem>();
  item->time.step = step;
  item->content.emplace<Content>(std::move(content));
  item->name = name;
  if (!log_kwargs.empty())
    item->kwargs = std::make_shared<const TrackerKwargs>(log_kwargs);
  session.services.tracking->push(item);
}

TrackedValues sizes_of(const Mesh& mesh) {
  TrackedValues sizes;
  for (const Axis axis :
       {Axis::pipeline,
        Axis::replicate,
        Axis::shard,
        Axis::expert,
        Axis::context,
        Axis::tensor})
    sizes.push_back({std::string(name_of(axis)), mesh.degree(axis)});
  return sizes;
}

// A seed may exceed the numbers that trackers support.
TrackedValues seeds() {
  const std::uint64_t seed =
      at::detail::getDefaultCPUGenerator().current_seed();
  return {{"torch", std::to_string(seed)}};
}

}  // namespace

std::function<detail::JournalSessionInfo()> detail::describe_process(
    const World& world,
    const Mesh& mesh) {
  return [num_processes = world.size(), axes = sizes_of(mesh)] {
    JournalSessionInfo info;
    info.command = command_of_process();
    info.versions = {
        {"accelerate", ACCELERATE_VERSION}, {"libtorch", TORCH_VERSION}};
    info.seeds = seeds();
    info.host = host_name();
    info.pid = ::getpid();
    info.num_processes = num_processes;
    info.mesh = axes;
    return info;
  };
}

std::shared_ptr<detail::CheckpointComponent> detail::run_component(
    RunTracking& tracking) {
  const auto state = [&tracking] {
    StateDict result;
    const auto position = tracking.position();
    if (!position) return result;
    result.set("run", position->run);
    if (position->step) result.set("step", *position->step);
    return result;
  };
  const auto load = [&tracking](const StateDict& saved) {
    if (!saved.contains("run")) return;
    RunPosition position{saved.get<std::string>("run")};
    if (saved.contains("step")) position.step = saved.get<std::int64_t>("step");
    tracking.resume(position);
  };
  return std::make_shared<StateComponent>(
      "run", AnyStateful{state, load}, StateUse::optional);
}

void Accelerator::init_trackers(
    const std::string& project_name,
    const LogValues& config,
    const TrackerKwargs& init_kwargs) const {
  session_->services.tracking->init_trackers(
      project_name, config.values(), init_kwargs);
}

void Accelerator::init_trackers(
    const std::string& project_name,
    std::nullopt_t,
    const TrackerKwargs& init_kwargs) const {
  session_->services.tracking->init_trackers(
      project_name, std::nullopt, init_kwargs);
}

void Accelerator::log(
    LogValues values,
    std::optional<std::int64_t> step,
    const TrackerKwargs& log_kwargs) const {
  if (log_kwargs.empty()) {
    session_->services.tracking->log(std::move(values).take(), step);
    return;
  }
  push(*session_, std::move(values).take(), step, {}, log_kwargs);
}

void Trackers::log_images(
    const std::string& name,
    const at::Tensor& images,
    std::optional<std::int64_t> step,
    const LogImagesOptions& options) const {
  if (!session_->services.tracking->is_active()) return;
  push(
      *session_,
      to_tracked_images(images, options.layout),
      step,
      name,
      options.log_kwargs);
}

void Trackers::log_table(
    const std::string& name,
    TrackedTable table,
    std::optional<std::int64_t> step,
    const TrackerKwargs& log_kwargs) const {
  for (const auto& row : table.rows) {
    if (row.size() == table.columns.size()) continue;
    throw ConfigError(detail::format(
        "[track] each row of a table must have a value per column, but the "
        "table \"{}\" has {} columns and a row of {} values",
        detail::printable(name),
        table.columns.size(),
        row.size()));
  }
  push(*session_, std::move(table), step, name, log_kwargs);
}

void Trackers::log_histogram(
    const std::string& name,
    const at::Tensor& values,
    std::optional<std::int64_t> step,
    std::int64_t num_bins) const {
  if (!session_->services.tracking->is_active()) return;
  push(*session_, to_tracked_histogram(values, num_bins), step, name);
}

void Trackers::log_figure(
    const std::string& name,
    const Figure& figure,
    std::optional<std::int64_t> step) const {
  if (session_->services.tracking->is_active())
    log_figure(name, to_svg(figure), step);
}

void Trackers::log_figure(
    const std::string& name,
    const std::string& svg,
    std::optional<std::int64_t> step) const {
  push(*session_, TrackedFigure{svg}, step, name);
}

void Trackers::log_artifact(
    const std::filesystem::path& path,
    const std::string& directory) const {
  push(*session_, TrackedArtifact{path.string(), directory}, std::nullopt);
}

std::shared_ptr<GeneralTracker> Accelerator::get_tracker(
    const std::string& name) const {
  return session_->services.tracking->get_tracker(name);
}

std::vector<std::shared_ptr<GeneralTracker>> Trackers::all() const {
  return session_->services.tracking->trackers();
}

std::filesystem::path Trackers::run_dir() const {
  return session_->services.tracking->run_dir();
}

void Trackers::flush() const { session_->services.tracking->flush(); }

}  // namespace accelerate
