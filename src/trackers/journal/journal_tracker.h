#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include <accelerate/tracker.h>

#include "format/journal/journal_writer.h"

namespace accelerate::detail {

/// Writes what is logged to a run's journal. All functions, inherited or not,
/// are called on the thread of its feed.
class JournalTracker final : public GeneralTracker {
 public:
  /// Opens the journal in the run's directory, creating both if necessary.
  /// Throws Error if that fails.
  JournalTracker(
      std::filesystem::path directory,
      std::string description,
      JournalWriterOptions options);

  [[nodiscard]] std::string name() const override { return "journal"; }
  void store_init_configuration(const TrackedValues& values) override;
  void log(
      const TrackedValues& values,
      const LogTime& time,
      const TrackedValues& options) override;
  /// Logs only the path of an artifact.
  bool log_item(const TrackedItem& item) override;
  /// Writes what was logged and closes the journal.
  void finish() override { writer_.reset(); }

  void add(JournalEvent event, const LogTime& time);
  /// Returns once everything is durable, or cannot be written now.
  void sync();
  /// Makes figures of later steps void.
  void rewind_to(std::int64_t step);
  /// Continues the journal of an earlier process after `step`, taking along
  /// what was logged here. Removes this tracker's own journal, and its
  /// directory if nothing else is in it. Throws Error, and stays with its own
  /// journal, if the other one cannot be written.
  void move_to(
      const std::filesystem::path& directory,
      std::string description,
      std::optional<std::int64_t> step);

  [[nodiscard]] const std::filesystem::path& directory() const {
    return directory_;
  }

 private:
  void note_not_finite(const TrackedValues& values, const LogTime& time);

  std::filesystem::path directory_;
  JournalWriterOptions options_;
  std::unique_ptr<JournalWriter> writer_;
  std::set<std::string> not_finite_;  // figures that were noted
};

/// The path of the journal of the run in that directory.
std::filesystem::path journal_path(const std::filesystem::path& directory);

}  // namespace accelerate::detail
