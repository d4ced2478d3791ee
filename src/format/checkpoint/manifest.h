#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "format/tensors/stored_tensors.h"

namespace accelerate::detail {

/// The contents of a checkpoint, which is complete if its manifest is present
/// and correct and every file has its recorded size.
struct Manifest {
  /// The program that wrote it: "accelerate.cpp 0.1.0".
  std::string writer;
  /// UTC, "2026-11-21T14:00:00Z".
  std::string created;
  std::int64_t iteration = 0;
  int num_processes = 1;
  /// True for what the ranks of one machine hold: boxes need not cover their
  /// tensors.
  bool is_part = false;
  /// Files by path inside the directory, separated by /.
  std::map<std::string, FileRecord> files;
  /// Keyed by "model", "model_1", "optimizer" and so on.
  std::map<std::string, SavedTensors> sections;
  /// Further names of a section's tensors: alias to name.
  std::map<std::string, std::map<std::string, std::string>> aliases;
};

inline constexpr int kManifestVersion = 1;
inline constexpr std::string_view kManifestName = "manifest.json";

/// Equal manifests give equal text. See docs/reference/checkpoint_format.md.
std::string manifest_text(const Manifest& manifest);

/// Throws CheckpointError unless the manifest is complete and unchanged, and
/// its boxes lie in listed files and cover each tensor once (in a part, at most
/// once); for a newer version the message says so. `name` is used in messages.
Manifest parse_manifest(std::string_view text, const std::string& name);

/// One rank's fragment, sent to the rank that writes the manifest: it has no
/// checksum, and its boxes need not cover their tensors.
std::string fragment_text(const Manifest& fragment);
Manifest parse_fragment(std::string_view text);
/// Adds another rank's files and boxes; boxes that a part already has are
/// skipped.
void merge_into(Manifest& manifest, Manifest fragment);

/// Reads the manifest of a checkpoint in which every file is present with its
/// recorded size. Otherwise throws CheckpointError naming what is wrong.
/// Contents are not checked.
Manifest read_manifest(const std::filesystem::path& directory);

/// XXH3 of one chunk.
std::uint64_t checksum_of(std::string_view bytes);
std::uint64_t checksum_of(std::span<const std::byte> bytes);

}  // namespace accelerate::detail
