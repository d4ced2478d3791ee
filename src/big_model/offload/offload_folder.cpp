#include "big_model/offload/offload_folder.h"

#include <algorithm>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/machine/available_memory.h"
#include "base/text/sizes.h"
#include "base/text/text.h"
#include "big_model/model/module_tensor.h"
#include "big_model/offload/offload_index.h"
#include "big_model/offload/weight_dtype.h"
#include "format/checkpoint/checksums.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;

// Calls `use` with the bytes of a weight, in pieces of kChunkBytes.
template <class Use>
void for_each_chunk(const TensorBytes& bytes, Use&& use) {
  std::vector<std::byte> stage;
  for (std::uint64_t begin = 0; begin < bytes.num_bytes; begin += kChunkBytes) {
    const std::uint64_t size = std::min(kChunkBytes, bytes.num_bytes - begin);
    if (bytes.data != nullptr) {
      use(begin, Bytes(bytes.data + begin, size));
      continue;
    }
    stage.resize(size);
    bytes.copy(begin, stage);
    use(begin, Bytes(stage));
  }
}

FileRecord record_of_bytes(const TensorBytes& bytes) {
  FileRecord record;
  record.num_bytes = bytes.num_bytes;
  for_each_chunk(bytes, [&](std::uint64_t, Bytes chunk) {
    record.checksums.push_back(checksum_of(chunk));
  });
  return record;
}

// The single byte of a file without elements, which cannot be mapped empty.
TensorBytes bytes_of_file(const TensorToWrite& weight) {
  static constexpr std::byte kNothing{0};
  if (weight.bytes.num_bytes > 0) return weight.bytes;
  return {.num_bytes = 1, .data = &kNothing};
}

std::string text_if_there(const fs::path& file) {
  return fs::exists(file) ? read_file(file) : std::string();
}

}  // namespace

fs::path offloaded_file(const fs::path& folder, const std::string& name) {
  const bool is_text = is_utf8(name) && name.find('\0') == std::string::npos;
  if (!is_text || (!name.empty() && !stays_below_directory(name))) {
    throw ConfigError(format(
        "[big_model] a weight named \"{}\" cannot have a file in an offload "
        "folder; rename it",
        printable(name)));
  }
  return folder / (name + ".dat");
}

std::uint64_t offloaded_file_size(const OffloadedWeight& weight) {
  const auto dtype = weight_dtype(weight.dtype);
  safetensors::Shape shape(weight.shape.begin(), weight.shape.end());
  const auto size = dtype ? safetensors::bytes_of(*dtype, shape) : std::nullopt;
  if (!size) {
    throw CheckpointError(format(
        "[big_model] an offloaded weight has dtype \"{}\" and {} dimensions, "
        "which cannot be read",
        printable(weight.dtype),
        weight.shape.size()));
  }
  return std::max<std::uint64_t>(*size, 1);
}

FileRecord offload_record_of(const TensorToWrite& weight) {
  return record_of_bytes(bytes_of_file(weight));
}

StoredTensor stored_in_dat_file(
    const fs::path& file,
    const OffloadedWeight& weight,
    const FileRecord* record) {
  const std::uint64_t expected = offloaded_file_size(weight);
  std::error_code missing;
  const std::uint64_t found = fs::file_size(file, missing);
  const bool is_other = record != nullptr && record->num_bytes != expected;
  if (missing || found != expected || is_other) {
    throw CheckpointError(format(
        "[big_model] {} {}, but the index says {} bytes: the folder is "
        "incomplete or was changed; remove it, and it will be filled again",
        file.string(),
        !missing               ? format("has {} bytes", found)
            : fs::exists(file) ? std::string("is not a regular file")
                               : std::string("is missing"),
        expected));
  }
  StoredTensor stored;
  stored.dtype = *weight_dtype(weight.dtype);
  stored.shape.assign(weight.shape.begin(), weight.shape.end());
  const bool has_elements =
      safetensors::bytes_of(stored.dtype, stored.shape) > 0;
  if (has_elements) {
    stored.boxes.push_back(
        {std::make_shared<InputFile>(
             file, record ? std::optional(*record) : std::nullopt),
         0,
         {safetensors::Shape(stored.shape.size(), 0), stored.shape}});
  }
  return stored;
}

void require_space(
    const fs::path& folder,
    const std::vector<std::pair<std::string, std::uint64_t>>& bytes_by_name) {
  std::uint64_t needed = 0;
  for (const auto& [name, num_bytes] : bytes_by_name)
    if (!fs::exists(offloaded_file(folder, name))) needed += num_bytes;
  const auto free = free_disk_space(folder);
  if (!free || needed <= *free) return;
  throw ConfigError(format(
      "[big_model] {} needs {} more, but its disk has {} free: use a folder on "
      "another disk, or keep more of the model in memory (max_memory)",
      folder.string(),
      format_size(static_cast<double>(needed)),
      format_size(static_cast<double>(*free))));
}

OffloadFolder read_offload_folder(const fs::path& folder) {
  OffloadFolder there;
  const fs::path index = folder / kOffloadIndexName;
  if (fs::exists(index))
    there.index = parse_offload_index(read_file(index), index.string());
  there.records =
      parse_offload_checksums(text_if_there(folder / kOffloadChecksumsName));
  return there;
}

StoredTensors stored_in_offload_folder(const fs::path& folder) {
  if (!fs::exists(folder / kOffloadIndexName)) {
    throw CheckpointError(format(
        "[big_model] {} has no {}: it is not an offload folder, or was not "
        "completely filled",
        folder.string(),
        kOffloadIndexName));
  }
  const OffloadFolder there = read_offload_folder(folder);
  StoredTensors stored;
  for (const auto& [name, weight] : there.index.entries()) {
    if (!weight.safetensors_file.empty()) {
      const StoredTensors file = stored_in_safetensors(weight.safetensors_file);
      const auto found =
          file.find(weight.weight_name.empty() ? name : weight.weight_name);
      if (found == file.end()) {
        throw CheckpointError(format(
            "[big_model] {} has no tensor \"{}\", which the index of {} names",
            weight.safetensors_file.string(),
            printable(weight.weight_name),
            folder.string()));
      }
      stored.emplace(name, found->second);
      continue;
    }
    const auto record = there.records.find(name);
    stored.emplace(
        name,
        stored_in_dat_file(
            offloaded_file(folder, name),
            weight,
            record == there.records.end() ? nullptr : &record->second));
  }
  return stored;
}

OffloadFolderWriter::OffloadFolderWriter(
    std::shared_ptr<FileSystem> disk,
    fs::path folder,
    bool replaces)
    : disk_(std::move(disk)),
      folder_(std::move(folder)),
      replaces_(replaces),
      lock_((fs::create_directories(folder_), DirectoryLock::wait(folder_))) {
  remove_staging();
  disk_->create_directory(folder_ / kOffloadStagingName);
  there_ = read_offload_folder(folder_);
}

OffloadFolderWriter::~OffloadFolderWriter() { remove_staging(); }

void OffloadFolderWriter::put(
    const std::string& name,
    const std::string& dtype,
    const TensorToWrite& weight) {
  put_file(name, weight);
  OffloadedWeight entry;
  entry.dtype = dtype;
  entry.shape.assign(weight.shape.begin(), weight.shape.end());
  wanted_.index.set(name, std::move(entry));
}

void OffloadFolderWriter::put_file(
    const std::string& name,
    const TensorToWrite& weight) {
  const fs::path file = offloaded_file(folder_, name);
  if (fs::exists(file)) {
    FileRecord record = offload_record_of(weight);
    if (holds(file, weight, record)) {
      wanted_.records[name] = std::move(record);
      return;
    }
  }
  if (there_.index.find(name) != nullptr) others_.push_back(name);
  // Weights that will be rejected need no file.
  if (replaces_ || others_.empty()) stage(name, weight);
}

void OffloadFolderWriter::put_entry(
    const std::string& name,
    OffloadedWeight weight) {
  wanted_.index.set(name, std::move(weight));
}

bool OffloadFolderWriter::holds(
    const fs::path& file,
    const TensorToWrite& weight,
    const FileRecord& record) const {
  const std::uint64_t size = bytes_of_file(weight).num_bytes;
  return fs::is_regular_file(file) && fs::file_size(file) == size &&
      record_of(file) == record;
}

void OffloadFolderWriter::stage(
    const std::string& name,
    const TensorToWrite& weight) {
  const fs::path file =
      folder_ / kOffloadStagingName / format("{}.dat", staged_.size());
  FileRecord record;
  const TensorBytes bytes = bytes_of_file(weight);
  record.num_bytes = bytes.num_bytes;
  const auto output = disk_->create(file);
  staged_.emplace_back(name, file);
  for_each_chunk(bytes, [&](std::uint64_t begin, Bytes chunk) {
    record.checksums.push_back(checksum_of(chunk));
    output->write_at(begin, chunk);
  });
  output->finish();
  wanted_.records[name] = std::move(record);
}

void OffloadFolderWriter::commit() {
  if (!replaces_ && !others_.empty()) {
    throw ConfigError(format(
        "[big_model] {} has other values for {}: it is the offload folder of "
        "another model; use another folder, or remove it, and it will be "
        "filled again",
        folder_.string(),
        name_list(others_)));
  }
  OffloadFolder after = there_;
  std::set<std::string> written;
  for (const auto& [name, file] : staged_) written.insert(name);
  OffloadIndex meanwhile;
  for (const auto& [name, weight] : there_.index.entries())
    if (!written.contains(name)) meanwhile.set(name, weight);
  const bool replaces = meanwhile.size() < there_.index.size();
  for (const auto& [name, weight] : wanted_.index.entries())
    after.index.set(name, weight);
  for (const auto& [name, record] : wanted_.records)
    after.records[name] = record;
  // From here on, an interruption leaves an index without the replaced weights.
  if (replaces) replace_text(kOffloadIndexName, offload_index_text(meanwhile));
  publish();
  if (after.records != there_.records)
    replace_text(kOffloadChecksumsName, offload_checksums_text(after.records));
  const bool has_new_index =
      replaces || after.index.entries() != there_.index.entries();
  if (has_new_index && !after.index.empty())
    replace_text(kOffloadIndexName, offload_index_text(after.index));
  there_ = std::move(after);
  wanted_ = {};
}

void OffloadFolderWriter::publish() {
  if (staged_.empty()) return;
  std::vector<fs::path> directories{folder_};
  for (const auto& [name, staged] : staged_) {
    const fs::path file = offloaded_file(folder_, name);
    for (const fs::path& changed : make_directories(file.parent_path()))
      directories.push_back(changed);
    disk_->rename(staged, file);
    if (file.parent_path() != directories.back())
      directories.push_back(file.parent_path());
  }
  std::ranges::sort(directories);
  directories.erase(
      std::unique(directories.begin(), directories.end()), directories.end());
  for (const fs::path& directory : directories)
    disk_->sync_directory(directory);
  staged_.clear();
}

// Creates the directories of weights whose names have slashes. Returns those
// with new files.
std::vector<fs::path> OffloadFolderWriter::make_directories(
    const fs::path& directory) {
  if (fs::is_directory(directory)) return {};
  std::vector<fs::path> changed = make_directories(directory.parent_path());
  disk_->create_directory(directory);
  changed.push_back(directory.parent_path());
  return changed;
}

void OffloadFolderWriter::replace_text(
    std::string_view name,
    const std::string& text) {
  const fs::path staged =
      folder_ / kOffloadStagingName / format("{}.new", name);
  const auto output = disk_->create(staged);
  output->write_at(0, std::as_bytes(std::span(text)));
  output->finish();
  disk_->rename(staged, folder_ / name);
  disk_->sync_directory(folder_);
}

void OffloadFolderWriter::remove_staging() noexcept {
  std::error_code ignored;
  fs::remove_all(folder_ / kOffloadStagingName, ignored);
}

}  // namespace accelerate::detail
