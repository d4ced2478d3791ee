#include "format/checkpoint/commit.h"

#include <unistd.h>

#include <algorithm>
#include <random>
#include <string_view>
#include <utility>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"
#include "format/checkpoint/checkpoint_directory.h"
#include "format/checkpoint/checksums.h"

namespace accelerate::detail {

namespace {

using std::filesystem::path;

// Suffixes of hidden names, before a token: being written, put aside while a
// new checkpoint takes the name, being deleted.
constexpr std::string_view kSaving = ".saving-";
constexpr std::string_view kAside = ".aside-";
constexpr std::string_view kDeleting = ".deleting-";

path hidden_name(const path& target, std::string_view purpose) {
  std::random_device random;
  return directory_of(target) /
      format(".{}{}{}-{}",
             target.filename().string(),
             purpose,
             ::getpid(),
             random());
}

// The visible name inside a hidden one; nothing for any other name.
std::optional<std::string> visible_name(
    std::string_view name,
    std::string_view purpose) {
  const std::size_t place = name.rfind(purpose);
  if (!name.starts_with('.') || place == std::string_view::npos || place < 2) {
    return std::nullopt;
  }
  for (const char c : name.substr(place + purpose.size())) {
    if (c != '-' && (c < '0' || c > '9')) return std::nullopt;
  }
  return std::string(name.substr(1, place - 1));
}

std::vector<path> entries_of(const path& directory) {
  std::vector<path> entries;
  std::error_code code;
  for (std::filesystem::directory_iterator listing(directory, code);
       !code && listing != std::filesystem::directory_iterator();
       listing.increment(code)) {
    entries.push_back(listing->path());
  }
  if (code) {
    throw Error(format(
        "[files] cannot list {}: {}", directory.string(), code.message()));
  }
  std::ranges::sort(entries);
  return entries;
}

bool is_real_directory(const path& entry) {
  std::error_code code;
  return std::filesystem::symlink_status(entry, code).type() ==
      std::filesystem::file_type::directory;
}

void remove_tree(FileSystem& disk, const path& directory) {
  for (const path& entry : entries_of(directory)) {
    if (is_real_directory(entry)) {
      remove_tree(disk, entry);
    } else {
      disk.remove_file(entry);
    }
  }
  disk.remove_directory(directory);
}

// True for names of files written by Python's Accelerate.
bool is_of_accelerate(const std::string& name) {
  static constexpr std::string_view kStarts[] = {
      "model",
      "pytorch_model",
      "optimizer",
      "scheduler",
      "sampler",
      "dl_state_dict",
      "scaler",
      "random_states_",
      "custom_checkpoint_"};
  static constexpr std::string_view kEnds[] = {
      ".safetensors", ".bin", ".pkl", ".pt", ".index.json"};
  const std::string_view view = name;
  return std::ranges::any_of(
             kStarts,
             [&](std::string_view start) { return view.starts_with(start); }) &&
      std::ranges::any_of(
             kEnds, [&](std::string_view end) { return view.ends_with(end); });
}

bool has_directory(const Manifest& manifest, const std::string& name) {
  const auto after = manifest.files.lower_bound(name + "/");
  return after != manifest.files.end() && after->first.starts_with(name + "/");
}

// Lists the files in the checkpoint to be replaced that no save wrote. Throws
// CheckpointError if `target` must not be replaced.
std::vector<path> user_entries_in(const path& target) {
  std::vector<path> user_entries;
  const bool has_manifest = std::filesystem::exists(target / kManifestName);
  std::optional<Manifest> manifest;
  if (has_manifest) {
    manifest = parse_manifest(
        read_file(target / kManifestName), (target / kManifestName).string());
  }
  bool is_checkpoint = has_manifest;
  for (const path& entry : entries_of(target)) {
    const std::string name = entry.filename().string();
    const bool is_own = manifest ? name == kManifestName ||
            manifest->files.contains(name) || has_directory(*manifest, name)
                                 : is_of_accelerate(name);
    is_checkpoint = is_checkpoint || name == "random_states_0.pkl";
    if (!is_own) user_entries.push_back(entry);
  }
  if (!is_checkpoint && !user_entries.empty()) {
    throw CheckpointError(format(
        "[checkpoint] {} exists and is not a checkpoint (it holds {}); a save "
        "replaces the whole directory, so give one that is new, empty, or a "
        "checkpoint",
        target.string(),
        user_entries.front().filename().string()));
  }
  for (const path& entry : user_entries) {
    if (is_real_directory(entry)) {
      throw CheckpointError(format(
          "[checkpoint] {} cannot be replaced: its directory {} is not part of "
          "the checkpoint; move it away first",
          target.string(),
          entry.filename().string()));
    }
  }
  return user_entries;
}

// The manifest in the directory of that name, empty if it has none; nothing if
// the directory does not exist. Manifests of two saves always differ.
std::optional<std::string> manifest_under(const path& target) {
  if (!std::filesystem::exists(target)) return std::nullopt;
  const path file = target / kManifestName;
  return std::filesystem::exists(file) ? read_file(file) : std::string();
}

[[noreturn]] void refuse_to_replace(const path& target) {
  throw CheckpointError(format(
      "[checkpoint] {} was written by another program just before this one; it "
      "stays as it is, and this save is dropped. Give each program a directory "
      "of its own",
      target.string()));
}

// The directory that `target` refers to: without a trailing slash, and with
// links followed, so that the directory is replaced and not the links.
path resolved(const path& target) {
  if (target.empty()) {
    throw CheckpointError("[checkpoint] a save needs a directory's name");
  }
  path clean = std::filesystem::absolute(target).lexically_normal();
  if (!clean.has_filename()) clean = clean.parent_path();
  std::error_code code;
  path followed = std::filesystem::weakly_canonical(clean, code);
  if (code) followed = clean;
  if (followed == followed.root_path()) {
    throw CheckpointError(format(
        "[checkpoint] {} cannot be replaced by a save", target.string()));
  }
  if (std::filesystem::exists(followed, code) &&
      !std::filesystem::is_directory(followed, code)) {
    throw CheckpointError(
        format("[checkpoint] {} is a file, not a directory", target.string()));
  }
  return followed;
}

// `directory` must be hidden, so that no reader mistakes what a crash leaves of
// it for a checkpoint.
void discard(FileSystem& disk, const path& directory) {
  const DirectoryLock lock(directory);
  remove_tree(disk, directory);
}

}  // namespace

void create_directories(FileSystem& disk, const path& directory) {
  if (directory.empty() || std::filesystem::is_directory(directory)) return;
  const path parent = directory_of(directory);
  create_directories(disk, parent);
  try {
    disk.create_directory(directory);
  } catch (const Error&) {
    // Another process created it first.
    if (!std::filesystem::is_directory(directory)) throw;
  }
  disk.sync_directory(parent);
}

void adopt_files(FileSystem& disk, const path& directory, Manifest& manifest) {
  const auto adopt = [&](const auto& self, const path& where) -> void {
    for (const path& entry : entries_of(where)) {
      if (is_real_directory(entry)) {
        self(self, entry);
        disk.sync_directory(entry);
        continue;
      }
      const std::string name =
          entry.lexically_relative(directory).generic_string();
      if (manifest.files.contains(name)) continue;
      if (!std::filesystem::is_regular_file(entry)) {
        throw Error(format(
            "[checkpoint] {}, which a hook wrote, must be a "
            "regular file, but is not",
            entry.string()));
      }
      disk.sync_file(entry);
      manifest.files.emplace(name, record_of(entry));
    }
  };
  adopt(adopt, directory);
}

void remove_checkpoint(FileSystem& disk, const path& directory) {
  const path hidden = hidden_name(directory, kDeleting);
  disk.rename(directory, hidden);
  disk.sync_directory(directory_of(directory));
  discard(disk, hidden);
}

void restore_put_aside(FileSystem& disk, const path& parent) {
  for (const path& entry : entries_of(parent)) {
    const auto name = visible_name(entry.filename().string(), kAside);
    if (!name || std::filesystem::exists(parent / *name)) continue;
    const DirectoryLock lock(entry);
    // A live save is between its two renames.
    if (!lock.is_held()) continue;
    disk.rename(entry, parent / *name);
    disk.sync_directory(parent);
  }
}

std::vector<std::string> sweep(FileSystem& disk, const path& parent) {
  std::vector<std::string> complaints;
  restore_put_aside(disk, parent);
  for (const path& entry : entries_of(parent)) {
    const std::string name = entry.filename().string();
    const bool is_leftover = visible_name(name, kSaving) ||
        visible_name(name, kAside) || visible_name(name, kDeleting);
    if (!is_leftover || !is_real_directory(entry)) continue;
    const DirectoryLock lock(entry);
    if (!lock.is_held()) continue;
    try {
      remove_tree(disk, entry);
    } catch (const Error& error) {
      complaints.emplace_back(error.what());
    }
  }
  return complaints;
}

PendingCheckpoint::PendingCheckpoint(
    std::shared_ptr<FileSystem> disk,
    const path& target)
    : disk_(std::move(disk)), target_(resolved(target)) {
  const path parent = directory_of(target_);
  create_directories(*disk_, parent);
  static_cast<void>(sweep(*disk_, parent));
  if (std::filesystem::exists(target_)) {
    static_cast<void>(user_entries_in(target_));
  }
  replaceable_ = manifest_under(target_);
  // Another save's sweep may get in before the lock, but not every time.
  constexpr int kAttempts = 8;
  for (int i = 0; i < kAttempts; ++i) {
    directory_ = hidden_name(target_, kSaving);
    disk_->create_directory(directory_);
    lock_.emplace(directory_);
    // The directory exists but is not locked: this file system cannot lock
    // directories.
    if (std::filesystem::exists(directory_)) break;
  }
}

PendingCheckpoint::~PendingCheckpoint() {
  if (is_committed_) return;
  try {
    remove_tree(*disk_, directory_);
  } catch (const std::exception&) {
    // The next save removes the directory.
  }
}

std::vector<std::string> PendingCheckpoint::commit(const Manifest& manifest) {
  const auto file = disk_->create(directory_ / kManifestName);
  const std::string text = manifest_text(manifest);
  file->write_at(0, std::as_bytes(std::span(text)));
  file->finish();
  return commit();
}

std::vector<std::string> PendingCheckpoint::commit() {
  const auto there = manifest_under(target_);
  if (there && there != replaceable_) refuse_to_replace(target_);
  if (there) {
    for (const path& entry : user_entries_in(target_)) {
      const path kept = directory_ / entry.filename();
      if (!std::filesystem::exists(kept)) disk_->link(entry, kept);
    }
  }
  disk_->sync_directory(directory_);
  const std::optional<path> replaced = take_name(there);
  is_committed_ = true;
  disk_->sync_directory(directory_of(target_));
  std::vector<std::string> warnings;
  if (replaced) {
    try {
      discard(*disk_, *replaced);
    } catch (const Error& error) {
      warnings.emplace_back(error.what());
    }
  }
  return warnings;
}

std::optional<path> PendingCheckpoint::take_name(
    const std::optional<std::string>& replaceable) {
  if (!replaceable) {
    if (!disk_->rename_to_unused(directory_, target_)) {
      refuse_to_replace(target_);
    }
    return std::nullopt;
  }
  if (std::filesystem::is_empty(target_)) {
    disk_->rename(directory_, target_);
    return std::nullopt;
  }
  if (disk_->exchange(directory_, target_)) {
    if (manifest_under(directory_) == replaceable) return directory_;
    // Another program took the name first. If moving its checkpoint back fails,
    // it must not be removed with the directory.
    is_committed_ = true;
    is_committed_ = !disk_->exchange(directory_, target_);
    refuse_to_replace(target_);
  }
  const DirectoryLock lock(target_);
  path aside = hidden_name(target_, kAside);
  disk_->rename(target_, aside);
  try {
    if (!disk_->rename_to_unused(directory_, target_)) {
      refuse_to_replace(target_);
    }
  } catch (...) {
    static_cast<void>(disk_->rename_to_unused(aside, target_));
    throw;
  }
  return aside;
}

}  // namespace accelerate::detail
