#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "format/journal/journal_frame.h"
#include "format/journal/journal_kinds.h"

namespace accelerate::testing {

/// Writes a run's journal entry by entry at times that the test chooses.
class RunJournal {
 public:
  explicit RunJournal(const std::filesystem::path& directory)
      : path_(directory / "journal") {
    std::filesystem::create_directories(directory);
    std::ofstream(path_, std::ios::binary | std::ios::app).flush();
  }

  RunJournal& session(double time, const detail::JournalSessionInfo& info) {
    return add(
        {time,
         std::nullopt,
         detail::JournalSession{detail::to_description(info)}});
  }
  RunJournal& scalars(
      double time,
      std::optional<std::int64_t> step,
      std::vector<detail::JournalScalars::Scalar> values) {
    return add({time, step, detail::JournalScalars{std::move(values)}});
  }
  RunJournal& event(
      double time,
      std::optional<std::int64_t> step,
      detail::JournalEvent event) {
    return add({time, step, std::move(event)});
  }
  RunJournal& rewind(double time, std::int64_t step) {
    return add({time, step, detail::JournalRewind{}});
  }
  /// Appends the pending entries to the file.
  void write() {
    std::ofstream file(path_, std::ios::binary | std::ios::app);
    file << encoder_.take_frame(sequence_++);
    file.flush();
  }

 private:
  RunJournal& add(const detail::JournalEntry& entry) {
    encoder_.add(entry);
    return *this;
  }

  std::filesystem::path path_;
  detail::JournalEncoder encoder_;
  std::uint64_t sequence_ = 0;
};

}  // namespace accelerate::testing
