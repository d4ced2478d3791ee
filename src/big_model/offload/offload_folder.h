#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/offload.h>

#include "base/files/file_system.h"
#include "format/checkpoint/manifest.h"
#include "format/tensors/stored_tensors.h"
#include "format/tensors/tensor_writer.h"

namespace accelerate::detail {

inline constexpr std::string_view kOffloadIndexName = "index.json";
/// Sizes and checksums of a folder's .dat files, by the names of weights.
inline constexpr std::string_view kOffloadChecksumsName = "checksums.json";
/// Directory of files that are not complete yet.
inline constexpr std::string_view kOffloadStagingName = ".filling";

/// The file of a weight. Throws ConfigError for names that are not paths inside
/// of a folder, or not UTF-8.
std::filesystem::path offloaded_file(
    const std::filesystem::path& folder,
    const std::string& name);

/// Bytes of such a file: those of the elements, but one if there are none.
std::uint64_t offloaded_file_size(const OffloadedWeight& weight);

/// A .dat file to be read. With `record`, its contents are compared with the
/// checksums on reading. Throws CheckpointError for a dtype that is unknown or
/// a file of another size, Error if it cannot be opened.
StoredTensor stored_in_dat_file(
    const std::filesystem::path& file,
    const OffloadedWeight& weight,
    const FileRecord* record = nullptr);

/// The size and checksums of the file of a weight.
FileRecord offload_record_of(const TensorToWrite& weight);

/// Throws ConfigError if a folder's disk has no room for these weights, not
/// counting those that it may already have.
void require_space(
    const std::filesystem::path& folder,
    const std::vector<std::pair<std::string, std::uint64_t>>& bytes_by_name);

/// The contents of a folder on disk.
struct OffloadFolder {
  OffloadIndex index;
  /// Sizes and checksums of the weights that this library wrote.
  std::map<std::string, FileRecord> records;
};

/// Reads the files beside the weights; missing ones give empty members. Throws
/// CheckpointError for an invalid index. Unreadable checksums count as missing.
OffloadFolder read_offload_folder(const std::filesystem::path& folder);

/// All weights of a folder's index, to be read by read_boxes(), which compares
/// checksums. Throws CheckpointError if the folder has no index or is not what
/// that says.
StoredTensors stored_in_offload_folder(const std::filesystem::path& folder);

/// Fills a folder. All or nothing: weights are written beside existing ones,
/// and commit() gives them their names.
class OffloadFolderWriter {
 public:
  /// Creates the folder, waits until no other writer uses it, and removes what
  /// a killed writer left. `replaces`: weights that the folder has with other
  /// contents are replaced; otherwise commit() throws ConfigError, and the
  /// folder is as before.
  OffloadFolderWriter(
      std::shared_ptr<FileSystem> disk,
      std::filesystem::path folder,
      bool replaces = true);
  /// Removes what is not committed.
  ~OffloadFolderWriter();
  OffloadFolderWriter(const OffloadFolderWriter&) = delete;
  OffloadFolderWriter& operator=(const OffloadFolderWriter&) = delete;

  /// Writes a weight, unless its file has these contents already.
  void put(
      const std::string& name,
      const std::string& dtype,
      const TensorToWrite& weight);
  /// Writes a weight's file without an entry in the index.
  void put_file(const std::string& name, const TensorToWrite& weight);
  /// Adds an entry without a file to write.
  void put_entry(const std::string& name, OffloadedWeight weight);
  /// Gives the files their names and writes the index, which never names an
  /// incomplete file.
  void commit();

 private:
  [[nodiscard]] bool holds(
      const std::filesystem::path& file,
      const TensorToWrite& weight,
      const FileRecord& record) const;
  void stage(const std::string& name, const TensorToWrite& weight);
  void publish();
  std::vector<std::filesystem::path> make_directories(
      const std::filesystem::path& directory);
  void replace_text(std::string_view name, const std::string& text);
  void remove_staging() noexcept;

  std::shared_ptr<FileSystem> disk_;
  std::filesystem::path folder_;
  bool replaces_;
  DirectoryLock lock_;
  OffloadFolder there_;
  OffloadFolder wanted_;
  /// Names of weights, and their files until commit().
  std::vector<std::pair<std::string, std::filesystem::path>> staged_;
  /// Written weights that the folder had with other values.
  std::vector<std::string> others_;
};

}  // namespace accelerate::detail
