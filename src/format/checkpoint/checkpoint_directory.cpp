#include "format/checkpoint/checkpoint_directory.h"

#include <algorithm>
#include <tuple>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "format/checkpoint/manifest.h"

namespace accelerate::detail {

namespace {

// Usable checkpoints count towards the limit, and can be the newest.
bool is_usable(const CheckpointEntry& entry) {
  return entry.number && entry.kind != CheckpointKind::unusable;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

CheckpointEntry describe(const std::filesystem::path& directory) {
  CheckpointEntry entry;
  entry.name = directory.filename().string();
  entry.number = number_of(entry.name);
  std::error_code code;
  // Python's Accelerate writes the random states last, except for the user's
  // objects.
  const bool has_manifest =
      std::filesystem::exists(directory / kManifestName, code);
  if (!has_manifest &&
      std::filesystem::exists(directory / "random_states_0.pkl", code)) {
    entry.kind = CheckpointKind::accelerate;
    return entry;
  }
  try {
    static_cast<void>(read_manifest(directory));
    entry.kind = CheckpointKind::complete;
  } catch (const Error& error) {
    entry.complaint = error.what();
  }
  return entry;
}

}  // namespace

std::optional<std::int64_t> number_of(std::string_view name) {
  while (!name.empty() && !is_digit(name.back())) name.remove_suffix(1);
  std::size_t begin = name.size();
  while (begin > 0 && is_digit(name[begin - 1])) --begin;
  const auto number = parse_int(name.substr(begin));
  if (!number) return std::nullopt;
  return *number;
}

std::vector<CheckpointEntry> list_checkpoints(
    const std::filesystem::path& directory) {
  std::vector<CheckpointEntry> entries;
  std::error_code code;
  std::filesystem::directory_iterator listing(directory, code);
  for (; !code && listing != std::filesystem::directory_iterator();
       listing.increment(code)) {
    const std::string name = listing->path().filename().string();
    std::error_code ignored;
    if (name.starts_with('.') || !listing->is_directory(ignored)) continue;
    entries.push_back(describe(listing->path()));
  }
  if (code && code != std::errc::no_such_file_or_directory) {
    throw Error(format(
        "[files] cannot list {}: {}", directory.string(), code.message()));
  }
  // Among equal numbers, a name that a user chose counts as older.
  const auto key = [](const CheckpointEntry& entry) {
    const bool is_automatic = entry.name.starts_with(kCheckpointPrefix);
    return std::tuple(entry.number, is_automatic, std::string_view(entry.name));
  };
  std::ranges::sort(
      entries, [&](const auto& a, const auto& b) { return key(a) < key(b); });
  return entries;
}

const CheckpointEntry* newest_of(const std::vector<CheckpointEntry>& entries) {
  const auto found = std::find_if(entries.rbegin(), entries.rend(), is_usable);
  return found == entries.rend() ? nullptr : &*found;
}

std::optional<RetentionPlan> plan_retention(
    const std::vector<CheckpointEntry>& entries,
    const std::string& name,
    std::optional<int> total_limit) {
  RetentionPlan plan;
  const auto num_usable =
      static_cast<std::size_t>(std::ranges::count_if(entries, is_usable));
  if (total_limit) {
    const auto limit = static_cast<std::size_t>(std::max(*total_limit, 1));
    std::size_t num_going = num_usable + 1 > limit ? num_usable + 1 - limit : 0;
    for (const CheckpointEntry& entry : entries) {
      if (num_going == 0) break;
      if (!is_usable(entry)) continue;
      --num_going;
      if (entry.name == name) {
        plan.replaces = true;
      } else {
        plan.deleted.push_back(entry.name);
      }
    }
  }
  const bool is_there = std::ranges::any_of(
      entries, [&](const auto& entry) { return entry.name == name; });
  if (is_there && !plan.replaces) return std::nullopt;
  return plan;
}

}  // namespace accelerate::detail
