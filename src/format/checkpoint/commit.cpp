#include "format/checkpoint/commit.h"

#include <unistd.h>

#include <algorithm>
#include <random>
#include <string_view>
#include <utility>

#include <accelerate/error.h>

#include "base/files.h"
#include "base/text.h"
#include "format/checkpoint/checkpoint_folder.h"
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
  return folder_of(target) /
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

std::vector<path> entries_of(const path& folder) {
  std::vector<path> entries;
  std::error_code code;
  for (std::filesystem::directory_iterator listing(folder, code);
       !code && listing != std::filesystem::directory_iterator();
       listing.increment(code)) {
    entries.push_back(listing->path());
  }
  if (code) {
    throw Error(
        format("[files] cannot list {}: {}", folder.string(), code.message()));
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

bool is_real_folder(const path& entry) {
  std::error_code code;
  return std::filesystem::symlink_status(entry, code).type() ==
      std::filesystem::file_type::directory;
}

void remove_tree(FileSystem& disk, const path& folder) {
  for (const path& entry : entries_of(folder)) {
    if (is_real_folder(entry)) {
      remove_tree(disk, entry);
    } else {
      disk.remove_file(entry);
    }
  }
  disk.remove_folder(folder);
}

// True for names of files that Python's Accelerate writes.
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
  return std::any_of(
             std::begin(kStarts),
             std::end(kStarts),
             [&](std::string_view start) { return view.starts_with(start); }) &&
      std::any_of(
             std::begin(kEnds), std::end(kEnds), [&](std::string_view end) {
               return view.ends_with(end);
             });
}

bool has_folder(const Manifest& manifest, const std::string& name) {
  const auto after = manifest.files.lower_bound(name + "/");
  return after != manifest.files.end() && after->first.starts_with(name + "/");
}

// Lists the user's own files in the checkpoint that is replaced.
std::vector<path> strangers_in(const path& target) {
  std::vector<path> strangers;
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
            manifest->files.contains(name) || has_folder(*manifest, name)
                                 : is_of_accelerate(name);
    is_checkpoint = is_checkpoint || name == "random_states_0.pkl";
    if (!is_own) strangers.push_back(entry);
  }
  if (!is_checkpoint && !strangers.empty()) {
    throw CheckpointError(format(
        "[checkpoint] {} is there and is no checkpoint (it holds {}); a save "
        "replaces the whole folder, so give one that is new, empty, or a "
        "checkpoint",
        target.string(),
        strangers.front().filename().string()));
  }
  for (const path& stranger : strangers) {
    if (is_real_folder(stranger)) {
      throw CheckpointError(format(
          "[checkpoint] the checkpoint to be replaced, {}, has a folder in it "
          "that is not its own: {}; move it away first",
          target.string(),
          stranger.filename().string()));
    }
  }
  return strangers;
}

// The directory that `target` means: without a final slash, and with links
// followed, so that the directory they lead to is replaced and not the links.
path resolved(const path& target) {
  if (target.empty()) {
    throw CheckpointError("[checkpoint] a save needs a folder's name");
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
        format("[checkpoint] {} is a file, not a folder", target.string()));
  }
  return followed;
}

// `folder` is hidden: if a crash leaves some of it, no reader takes that for a
// checkpoint.
void discard(FileSystem& disk, const path& folder) {
  const FolderLock lock(folder);
  remove_tree(disk, folder);
}

}  // namespace

void create_folders(FileSystem& disk, const path& folder) {
  if (folder.empty() || std::filesystem::is_directory(folder)) return;
  const path parent = folder_of(folder);
  create_folders(disk, parent);
  try {
    disk.create_folder(folder);
  } catch (const Error&) {
    // Another process was faster.
    if (!std::filesystem::is_directory(folder)) throw;
  }
  disk.sync_folder(parent);
}

void adopt_files(FileSystem& disk, const path& folder, Manifest& manifest) {
  const auto adopt = [&](const auto& self, const path& where) -> void {
    for (const path& entry : entries_of(where)) {
      if (is_real_folder(entry)) {
        self(self, entry);
        disk.sync_folder(entry);
        continue;
      }
      const std::string name =
          entry.lexically_relative(folder).generic_string();
      if (manifest.files.contains(name)) continue;
      if (!std::filesystem::is_regular_file(entry)) {
        throw Error(format(
            "[checkpoint] {}, put there by a hook, is no regular file",
            entry.string()));
      }
      disk.sync_file(entry);
      manifest.files.emplace(name, record_of(entry));
    }
  };
  adopt(adopt, folder);
}

void remove_checkpoint(FileSystem& disk, const path& folder) {
  const path hidden = hidden_name(folder, kDeleting);
  disk.rename(folder, hidden);
  disk.sync_folder(folder_of(folder));
  discard(disk, hidden);
}

void restore_put_aside(FileSystem& disk, const path& parent) {
  for (const path& entry : entries_of(parent)) {
    const auto name = visible_name(entry.filename().string(), kAside);
    if (!name || std::filesystem::exists(parent / *name)) continue;
    // A live save is between its two renames.
    const FolderLock lock(entry);
    if (!lock.is_held()) continue;
    disk.rename(entry, parent / *name);
    disk.sync_folder(parent);
  }
}

std::vector<std::string> sweep(FileSystem& disk, const path& parent) {
  std::vector<std::string> complaints;
  restore_put_aside(disk, parent);
  for (const path& entry : entries_of(parent)) {
    const std::string name = entry.filename().string();
    const bool is_leftover = visible_name(name, kSaving) ||
        visible_name(name, kAside) || visible_name(name, kDeleting);
    if (!is_leftover || !is_real_folder(entry)) continue;
    const FolderLock lock(entry);
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
  const path parent = folder_of(target_);
  create_folders(*disk_, parent);
  static_cast<void>(sweep(*disk_, parent));
  if (std::filesystem::exists(target_)) {
    static_cast<void>(strangers_in(target_));
  }
  // Another save's sweep may be faster than the lock, but not again and again.
  constexpr int kAttempts = 8;
  for (int i = 0; i < kAttempts; ++i) {
    folder_ = hidden_name(target_, kSaving);
    disk_->create_folder(folder_);
    lock_.emplace(folder_);
    // It exists but is not locked: this file system cannot lock directories.
    if (std::filesystem::exists(folder_)) break;
  }
}

PendingCheckpoint::~PendingCheckpoint() {
  if (is_committed_) return;
  try {
    remove_tree(*disk_, folder_);
  } catch (const std::exception&) {
    // The next save removes it.
  }
}

std::vector<std::string> PendingCheckpoint::commit(const Manifest& manifest) {
  const path parent = folder_of(target_);
  const bool replaces = std::filesystem::exists(target_);
  if (replaces) {
    for (const path& stranger : strangers_in(target_)) {
      const path kept = folder_ / stranger.filename();
      if (!std::filesystem::exists(kept)) disk_->link(stranger, kept);
    }
  }
  const auto file = disk_->create(folder_ / kManifestName);
  const std::string text = manifest_text(manifest);
  file->write_at(0, std::as_bytes(std::span(text)));
  file->finish();
  disk_->sync_folder(folder_);

  std::optional<path> replaced;
  if (!replaces || std::filesystem::is_empty(target_)) {
    disk_->rename(folder_, target_);
  } else if (disk_->exchange(folder_, target_)) {
    replaced = folder_;
  } else {
    const FolderLock lock(target_);
    replaced = hidden_name(target_, kAside);
    disk_->rename(target_, *replaced);
    try {
      disk_->rename(folder_, target_);
    } catch (...) {
      disk_->rename(*replaced, target_);
      throw;
    }
  }
  is_committed_ = true;
  disk_->sync_folder(parent);
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

}  // namespace accelerate::detail
