#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/checkpoint.h>
#include <accelerate/log.h>

#include "base/files/file_system.h"
#include "base/progress/byte_progress.h"
#include "checkpoint/contents.h"
#include "comm/agreement/store_group.h"
#include "format/checkpoint/commit.h"
#include "format/checkpoint/file_names.h"

namespace accelerate::detail {

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
  /// False saves models as torch.save files.
  bool safe_serialization = true;
  CheckpointLayout layout = CheckpointLayout::native;
  /// Throws if values that this rank has read from devices may be undefined.
  std::function<void()> require_intact = nullptr;
  /// True for what the ranks of one machine hold; see MachinePartScope.
  bool is_part = false;
  /// What earlier saves reported as left out by the layout, so that it is
  /// reported once. Used by one save at a time.
  std::shared_ptr<std::set<std::string>> known_left_out =
      std::make_shared<std::set<std::string>>();
};

/// Writes a checkpoint together with the other ranks of a group, whose leader
/// commits it. If one rank fails, all throw CheckpointError naming it and its
/// reason, and the files are removed.
class CheckpointWriter {
 public:
  /// Creates the directory. `group` must outlive the writer and be used for
  /// nothing else meanwhile.
  CheckpointWriter(SaveJob job, StoreGroup& group);

  /// The directory being written. Until write(), hooks may add files to it.
  [[nodiscard]] const std::filesystem::path& directory() const {
    return directory_;
  }
  [[nodiscard]] const std::filesystem::path& target() const {
    return job_.target;
  }
  [[nodiscard]] CheckpointContents& contents() { return job_.contents; }
  /// Shows how many bytes write() writes.
  void set_progress(std::shared_ptr<ByteProgress> progress) {
    job_.disk = count_writes(std::move(job_.disk), std::move(progress));
  }
  /// Throws if what was read for the checkpoint so far may be undefined. write()
  /// calls it, too, unless it was called before.
  void require_intact();
  /// May be called on another thread. Returns once the checkpoint is durable.
  /// If this rank passes a `failure`, nothing is written and all ranks throw.
  void write(const std::string& failure = {});

 private:
  [[nodiscard]] std::string write_files();
  void commit(const std::vector<std::string>& answers);
  /// Commits the files of the job's layout. Returns warnings.
  std::vector<std::string> commit_layout(const Manifest& manifest);
  void warn_left_out(const std::vector<std::string>& left_out) const;

  SaveJob job_;
  StoreGroup& group_;
  std::optional<PendingCheckpoint> pending_;
  std::filesystem::path directory_;
  bool was_intact_ = false;
};

}  // namespace accelerate::detail
