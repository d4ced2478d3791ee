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

/// Trackers and the run's journal; a base class of Accelerator. Functions act
/// on the main process and return at once on the others; a call costs about as
/// much as copying what is logged, since another thread passes it on. Pass
/// steps: without them, a resumed run cannot tell what it repeats.
class ACCELERATE_API AcceleratorTracking : public AcceleratorCollectives {
 public:
  /// Creates and starts the trackers of AcceleratorOptions::log_with, and
  /// passes them `config`; an empty one is passed on as well, std::nullopt is
  /// not. `init_kwargs`: settings by tracker name. Throws whatever a tracker
  /// that cannot start throws, and ConfigError if called before.
  void init_trackers(
      const std::string& project_name,
      const LogValues& config,
      const TrackerKwargs& init_kwargs = {}) const;
  void init_trackers(
      const std::string& project_name,
      std::nullopt_t config = std::nullopt,
      const TrackerKwargs& init_kwargs = {}) const;
  /// Logs values of a step to the journal and all trackers. `log_kwargs`:
  /// options by tracker name.
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
  /// Returns how many tokens all ranks have sent to the experts of each
  /// ExpertLayer of a model since the last call; if a pipeline divides the
  /// model, for this rank's layers only. Collective. To log them:
  /// log(to_tracked_values(loads), step). Needs experts.h.
  template <class M>
  [[nodiscard]] std::vector<ExpertLoad> expert_loads(
      const Model<M>& model) const {
    return detail::take_expert_loads(*model.prepared());
  }

  /// Copies a file, or a directory with all its contents, into the runs of
  /// trackers that keep artifacts; `directory` is the destination within the
  /// run. The copy is made in the background, soon after this returns. The
  /// journal records the path.
  void log_artifact(
      const std::filesystem::path& path,
      const std::string& directory = {}) const;

  /// Returns the tracker of that name once it has received everything logged so
  /// far. On other ranks, and without trackers, returns one whose functions are
  /// no-ops. Do not log while using it: trackers are not thread-safe. Throws
  /// ConfigError if no tracker has that name.
  [[nodiscard]] std::shared_ptr<GeneralTracker> get_tracker(
      const std::string& name) const;
  /// The trackers that init_trackers() started; none on other ranks.
  [[nodiscard]] std::vector<std::shared_ptr<GeneralTracker>> trackers() const;
  /// The run's directory, which contains its journal; empty on other ranks,
  /// without a journal, and until something is logged.
  [[nodiscard]] std::filesystem::path run_dir() const;
  /// Returns once the trackers have received what was logged, and the journal
  /// is durable.
  void flush_trackers() const;

 protected:
  using AcceleratorCollectives::AcceleratorCollectives;
};

}  // namespace accelerate
