#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "cli/runs/run_export.h"
#include "cli/runs/run_record.h"
#include "cli/trace/merge_traces.h"
#include "format/journal/journal_frame.h"
#include "format/journal/journal_reader.h"
#include "format/journal/journal_writer.h"
#include "fuzz/guarded.h"
#include "fuzz/targets.h"
#include "trackers/journal/replay.h"

namespace accelerate::fuzz {

namespace {

template <class T>
T number_at(std::string_view bytes, std::size_t at) {
  T number{};
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

void put_checksum(
    std::string& bytes,
    std::size_t at,
    std::string_view checked) {
  const std::uint64_t checksum = XXH3_64bits(checked.data(), checked.size());
  std::memcpy(bytes.data() + at, &checksum, sizeof checksum);
}

// Gives the frames of a journal their checksums, which no fuzzer guesses. A
// frame keeps its own if the last byte of its number is not zero.
std::string with_checksums(std::string_view input) {
  constexpr std::string_view kMagic = "ACJ1";
  constexpr std::size_t kLastOfNumber = 15, kOfPayload = 16, kOfHeader = 24;
  std::string bytes(input);
  std::size_t at = bytes.find(kMagic);
  while (at != std::string::npos &&
         at + detail::kJournalHeaderBytes <= bytes.size()) {
    const std::size_t payload = at + detail::kJournalHeaderBytes;
    const auto num_bytes = number_at<std::uint32_t>(bytes, at + 4);
    const bool is_whole = num_bytes <= bytes.size() - payload;
    if (bytes[at + kLastOfNumber] != 0) {
      at = bytes.find(kMagic, at + 1);
      continue;
    }
    const std::string_view all = bytes;
    if (is_whole)
      put_checksum(bytes, at + kOfPayload, all.substr(payload, num_bytes));
    put_checksum(bytes, at + kOfHeader, all.substr(at, kOfHeader));
    at = bytes.find(kMagic, is_whole ? payload + num_bytes : at + 1);
  }
  return bytes;
}

// What `runs`, `watch` and `replay` do with a run.
void read_run(const std::filesystem::path& directory) {
  guarded([&] {
    std::vector<std::unique_ptr<cli::RunRecord>> runs;
    runs.push_back(
        std::make_unique<cli::RunRecord>(cli::RunPlace{"run", directory}));
    guarded([&] { runs.front()->update(); });
    static_cast<void>(cli::to_export_json(runs));
    static_cast<void>(cli::main_figure_of(*runs.front()));
  });
  guarded([&] {
    static_cast<void>(detail::recorded_run(
        detail::JournalReader(directory / "journal").read()));
  });
}

}  // namespace

void journal(Input input) {
  const auto directory = scratch() / "run";
  std::filesystem::create_directories(directory);
  put(directory / "journal", with_checksums(text_of(input)));
  read_run(directory);
}

void continued_journal(Input input) {
  const auto path = scratch() / "continued";
  put(path, with_checksums(text_of(input)));
  guarded([&] {
    // Entries of an unknown kind stay as well.
    const std::uint64_t before = std::filesystem::file_size(path);
    std::uint64_t end = 0;
    {
      detail::JournalReader reader(path);
      reader.read([](detail::JournalDecoder&, std::uint64_t) {});
      end = reader.end_of_frames();
    }
    const std::string kept = detail::JournalReader(path).read_bytes(0, end);
    detail::JournalWriter(path, "{}");
    detail::JournalReader reader(path);
    std::uint64_t last = 0;
    reader.read([&](detail::JournalDecoder&, std::uint64_t at) { last = at; });
    const bool is_good = reader.read_bytes(0, end) == kept && last >= end &&
        reader.end_of_frames() == reader.size() &&
        (last - detail::kJournalHeaderBytes == end ||
         last - detail::kJournalHeaderBytes == before);
    if (!is_good) std::abort();
  });
}

void trace(Input input) {
  const std::string_view text = text_of(input);
  // Traces of two ranks, with a zero byte between them.
  const std::size_t middle = std::min(text.find('\0'), text.size());
  const auto one = scratch() / "profile_0.json";
  const auto other = scratch() / "profile_1.json";
  put(one, text.substr(0, middle));
  put(other, text.substr(std::min(middle + 1, text.size())));
  std::vector<std::filesystem::path> paths{one};
  if (middle < text.size()) paths.push_back(other);
  guarded([&] {
    static_cast<void>(cli::merge_traces(paths, scratch() / "merged.json"));
  });
}

}  // namespace accelerate::fuzz
