#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>
#include <accelerate/tracker.h>
#include <accelerate/tracking.h>

namespace accelerate {

namespace detail {
struct Session;
}  // namespace detail

/// An Accelerator's trackers and its run's journal, for everything that
/// Accelerator::log() does not cover; the same rules apply. Cheap; made by
/// Accelerator::trackers().
class ACCELERATE_API Trackers {
 public:
  explicit Trackers(std::shared_ptr<detail::Session> session)
      : session_(std::move(session)) {}

  /// Logs one image, or a batch. See to_tracked_images().
  void log_images(
      const std::string& name,
      const at::Tensor& images,
      std::optional<std::int64_t> step = std::nullopt,
      const LogImagesOptions& options = {}) const;
  /// Logs a table. `log_kwargs`: settings by tracker name.
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
  /// Logs a figure as an SVG document, `svg`.
  void log_figure(
      const std::string& name,
      const std::string& svg,
      std::optional<std::int64_t> step = std::nullopt) const;
  /// Copies a file, or a directory with all its contents, into the runs of
  /// trackers that keep artifacts; `directory` is the destination within the
  /// run. The copy is made in the background, soon after this returns. The
  /// journal records the path.
  void log_artifact(
      const std::filesystem::path& path,
      const std::string& directory = {}) const;

  /// The trackers that init_trackers() started; none on other ranks.
  [[nodiscard]] std::vector<std::shared_ptr<GeneralTracker>> all() const;
  /// The run's directory, which contains its journal; empty on other ranks,
  /// without a journal, and until something is logged.
  [[nodiscard]] std::filesystem::path run_dir() const;
  /// Returns once the trackers have received what was logged, and the journal
  /// is durable.
  void flush() const;

 private:
  detail::KeptPtr<detail::Session> session_;
};

}  // namespace accelerate
