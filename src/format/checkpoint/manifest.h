#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/safetensors.h>

namespace accelerate::detail {

/// Size of the chunks in which a checkpoint's files are hashed (the last may be
/// shorter), so that threads can share a file and a chunk can be checked alone.
inline constexpr std::uint64_t kChunkBytes = 16U << 20U;

/// Size and checksums of a file as it was written.
struct FileRecord {
  std::uint64_t num_bytes = 0;
  /// XXH3 (64 bits, seed 0) of each chunk of kChunkBytes.
  std::vector<std::uint64_t> checksums;

  friend bool operator==(const FileRecord&, const FileRecord&) = default;
};

/// The place of a slice of a tensor: in `file` under the tensor's name.
struct SavedBox {
  std::string file;
  safetensors::Box box;
  /// The first row, along dimension 0, of this slice in what the file holds
  /// under that name, if that is several slices; unset if it is only this one.
  std::optional<std::uint64_t> row = std::nullopt;
};

struct SavedTensor {
  safetensors::Dtype dtype = safetensors::Dtype::F32;
  /// Shape of the full tensor.
  safetensors::Shape shape;
  std::vector<SavedBox> boxes;
};

/// Tensors by name, such as those of a model.
using SavedTensors = std::map<std::string, SavedTensor>;

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
