#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/accelerator_collectives.h>
#include <accelerate/export.h>
#include <accelerate/tracker.h>
#include <accelerate/tracking.h>

namespace accelerate {

struct ExpertLoad;  // experts.h
template <class M>
class Model;

namespace detail {
struct PreparedModel;
ACCELERATE_API std::vector<ExpertLoad> take_expert_loads(PreparedModel& model);
}  // namespace detail

/// Trackers and the run's journal: a base of Accelerator. Functions act on the
/// main process and return at once on the others; they cost the loop about as
/// much as copying what is logged, since another thread hands it on. Give steps:
/// without them a resumed run cannot tell what it repeats.
class ACCELERATE_API AcceleratorTracking : public AcceleratorCollectives {
 public:
  /// Makes and starts the trackers of AcceleratorOptions::log_with, and gives
  /// them the configuration. `init_kwargs`: settings by the trackers' names.
  /// Throws what a tracker throws that cannot start, and ConfigError if it was
  /// called before.
  void init_trackers(
      const std::string& project_name,
      const LogValues& config = {},
      const TrackerKwargs& init_kwargs = {}) const;
  /// Logs values of a step to the journal and all trackers. `log_kwargs`:
  /// options by the trackers' names.
  void log(
      LogValues values,
      std::optional<std::int64_t> step = std::nullopt,
      const TrackerKwargs& log_kwargs = {}) const;
  /// Logs one image, or a batch. See to_tracked_images().
  void log_images(
      const std::string& name,
      const at::Tensor& images,
      std::optional<std::int64_t> step = std::nullopt,
      const LogImagesOptions& options = {}) const;
  void log_table(
      const std::string& name,
      TrackedTable table,
      std::optional<std::int64_t> step = std::nullopt,
      const TrackerKwargs& log_kwargs = {}) const;
  /// Logs how a tensor's elements are distributed. See to_tracked_histogram().
  void log_histogram(
      const std::string& name,
      const at::Tensor& values,
      std::optional<std::int64_t> step = std::nullopt,
      std::int64_t num_bins = 64) const;
  void log_figure(
      const std::string& name,
      const Figure& figure,
      std::optional<std::int64_t> step = std::nullopt) const;
  /// `svg`: an SVG document.
  void log_figure(
      const std::string& name,
      const std::string& svg,
      std::optional<std::int64_t> step = std::nullopt) const;
  /// How many tokens the experts of each ExpertLayer of a model were sent since
  /// the last call, by all ranks; of this rank's layers, if a pipeline divides
  /// the model. Collective. To log them: log(to_tracked_values(loads), step).
  /// Needs experts.h.
  template <class M>
  [[nodiscard]] std::vector<ExpertLoad> expert_loads(
      const Model<M>& model) const {
    return detail::take_expert_loads(*model.prepared());
  }

  /// Copies a file, or a directory with all in it, into the trackers' runs,
  /// where they keep such; `directory` is the one in the run for it. The copy
  /// is made soon after, not before this returns. The journal notes the path.
  void log_artifact(
      const std::filesystem::path& path,
      const std::string& directory = {}) const;

  /// The tracker of that name, when it has got all that was logged before. On
  /// other ranks, and without trackers, one whose functions do nothing. Do not
  /// log while you call it: trackers are not for several threads. Throws
  /// ConfigError for a name that is not among the trackers.
  [[nodiscard]] std::shared_ptr<GeneralTracker> get_tracker(
      const std::string& name) const;
  /// Those that init_trackers() started; none on other ranks.
  [[nodiscard]] std::vector<std::shared_ptr<GeneralTracker>> trackers() const;
  /// The directory of the run, in which its journal is; empty on other ranks,
  /// without a journal, and while nothing has been logged.
  [[nodiscard]] std::filesystem::path run_dir() const;
  /// Returns when trackers have got what was logged, and the journal is durable.
  void flush_trackers() const;

 protected:
  using AcceleratorCollectives::AcceleratorCollectives;
};

}  // namespace accelerate
