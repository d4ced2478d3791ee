#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/log.h>

#include "base/file_system.h"
#include "checkpoint/contents.h"
#include "comm/monitoring/store_group.h"
#include "format/checkpoint/commit.h"

namespace accelerate::detail {

inline constexpr const char* kStateSection = "state";
/// The key of the JSON in the metadata of the files that hold states.
inline constexpr const char* kStateKey = "state";

/// The file of a section: "model.safetensors", or, if the section is sharded,
/// "model-00002-of-00004.safetensors" for rank 1 of 4.
std::string section_file(
    const std::string& section,
    bool is_sharded,
    int rank,
    int num_processes);
/// "pytorch_model_1.bin" for "model_1".
std::string torch_file_of(const std::string& section);
/// "rank-00003.safetensors".
std::string rank_file(int rank);

/// One save, on one rank.
struct SaveJob {
  CheckpointContents contents;
  std::filesystem::path target;
  std::int64_t iteration = 0;
  int rank = 0;
  int num_processes = 1;
  /// Older checkpoints to delete once it is complete; read on the leader.
  std::vector<std::filesystem::path> deleted;
  std::shared_ptr<FileSystem> disk;
  Logger logger;
  /// False: models as torch.save files.
  bool safe_serialization = true;
};

/// Writes a checkpoint together with the other ranks of a group, whose leader
/// commits it. If one rank fails, all throw CheckpointError naming it and its
/// reason, and the files are removed.
class CheckpointWriter {
 public:
  /// Creates the directory. `group` must outlive the writer and serve nothing
  /// else meanwhile.
  CheckpointWriter(SaveJob job, StoreGroup& group);

  /// The directory being written. Until write(), hooks may add files to it.
  [[nodiscard]] const std::filesystem::path& directory() const {
    return directory_;
  }
  [[nodiscard]] const std::filesystem::path& target() const {
    return job_.target;
  }
  [[nodiscard]] CheckpointContents& contents() { return job_.contents; }
  /// May be called on another thread. Returns when the checkpoint is durable.
  /// With a `failure` of this rank nothing is written, and all ranks throw.
  void write(const std::string& failure = {});

 private:
  [[nodiscard]] std::string write_files() const;
  void commit(const std::vector<std::string>& answers);

  SaveJob job_;
  StoreGroup& group_;
  std::optional<PendingCheckpoint> pending_;
  std::filesystem::path directory_;
};

}  // namespace accelerate::detail
