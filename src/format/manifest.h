#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/safetensors.h>

namespace accelerate::detail {

/// What a checkpoint's files are hashed in: pieces of so many bytes, the last
/// one shorter, so that threads can share a file and a part can be checked
/// alone.
inline constexpr std::uint64_t kChunkBytes = 16U << 20U;

/// Of a file as it was written.
struct FileRecord {
  std::uint64_t num_bytes = 0;
  /// XXH3 (64 bits, seed 0) of each chunk of kChunkBytes.
  std::vector<std::uint64_t> checksums;

  friend bool operator==(const FileRecord&, const FileRecord&) = default;
};

/// Where a part of a tensor is: in `file` under the tensor's name.
struct SavedBox {
  std::string file;
  safetensors::Box box;
};

struct SavedTensor {
  safetensors::Dtype dtype = safetensors::Dtype::F32;
  /// Of the whole.
  safetensors::Shape shape;
  std::vector<SavedBox> boxes;
};

/// Tensors by name, such as a model's.
using SavedTensors = std::map<std::string, SavedTensor>;

/// What a checkpoint contains. It is complete if this is there and right, and
/// every file has its size.
struct Manifest {
  /// Who wrote it: "accelerate.cpp 0.1.0".
  std::string writer;
  /// UTC, "2026-11-21T14:00:00Z".
  std::string created;
  std::int64_t iteration = 0;
  int num_processes = 1;
  /// By path inside the folder, with / between its steps.
  std::map<std::string, FileRecord> files;
  /// "model", "model_1", "optimizer" and so on.
  std::map<std::string, SavedTensors> parts;
  /// Names of a part's tensors that are other names' tensors.
  std::map<std::string, std::map<std::string, std::string>> aliases;
};

inline constexpr int kManifestVersion = 1;
inline constexpr std::string_view kManifestName = "manifest.json";

/// Equal manifests give equal texts. See docs/reference/checkpoint_format.md.
std::string manifest_text(const Manifest& manifest);

/// Throws CheckpointError for anything but a whole, unchanged manifest whose
/// boxes cover each tensor once and lie in listed files; for a newer version it
/// names that. `name`: what to call it in messages.
Manifest parse_manifest(std::string_view text, const std::string& name);

/// One rank's share, on its way to the rank that writes the manifest: no
/// checksum, and boxes that need not cover their tensors.
std::string fragment_text(const Manifest& fragment);
Manifest parse_fragment(std::string_view text);
/// Adds another rank's files and boxes.
void merge_into(Manifest& manifest, Manifest fragment);

/// The manifest of a checkpoint of which every file is there with its size.
/// Throws CheckpointError naming what is wrong; contents are not checked.
Manifest read_manifest(const std::filesystem::path& folder);

/// XXH3 of one chunk.
std::uint64_t checksum_of(std::string_view bytes);

}  // namespace accelerate::detail
