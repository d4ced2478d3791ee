#include "base/progress/byte_progress.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;

ProgressOptions options_of_bytes(
    std::optional<std::uint64_t> num_expected,
    ProgressOptions options) {
  options.total = num_expected;
  options.unit = "B";
  options.unit_scale = true;
  options.leave = false;
  return options;
}

class CountedFile final : public OutputFile {
 public:
  CountedFile(
      std::unique_ptr<OutputFile> file,
      std::shared_ptr<ByteProgress> progress)
      : file_(std::move(file)), progress_(std::move(progress)) {}

  using OutputFile::write_at;
  void write_at(std::uint64_t offset, std::span<const Bytes> pieces) override {
    file_->write_at(offset, pieces);
    std::uint64_t num_bytes = 0;
    for (const Bytes& piece : pieces) num_bytes += piece.size();
    progress_->add(num_bytes);
  }
  void finish() override { file_->finish(); }

 private:
  std::unique_ptr<OutputFile> file_;
  std::shared_ptr<ByteProgress> progress_;
};

class CountedFileSystem final : public FileSystem {
 public:
  CountedFileSystem(
      std::shared_ptr<FileSystem> disk,
      std::shared_ptr<ByteProgress> progress)
      : disk_(std::move(disk)), progress_(std::move(progress)) {}

  std::unique_ptr<OutputFile> create(const fs::path& path) override {
    return std::make_unique<CountedFile>(disk_->create(path), progress_);
  }
  void create_directory(const fs::path& path) override {
    disk_->create_directory(path);
  }
  void rename(const fs::path& from, const fs::path& to) override {
    disk_->rename(from, to);
  }
  bool rename_to_unused(const fs::path& from, const fs::path& to) override {
    return disk_->rename_to_unused(from, to);
  }
  bool exchange(const fs::path& one, const fs::path& other) override {
    return disk_->exchange(one, other);
  }
  void link(const fs::path& from, const fs::path& to) override {
    disk_->link(from, to);
  }
  void sync_file(const fs::path& path) override { disk_->sync_file(path); }
  void remove_file(const fs::path& path) override { disk_->remove_file(path); }
  void remove_directory(const fs::path& path) override {
    disk_->remove_directory(path);
  }
  void sync_directory(const fs::path& directory) override {
    disk_->sync_directory(directory);
  }

 private:
  std::shared_ptr<FileSystem> disk_;
  std::shared_ptr<ByteProgress> progress_;
};

}  // namespace

ByteProgress::ByteProgress(
    std::optional<std::uint64_t> num_expected,
    ProgressOptions options)
    : bar_(options_of_bytes(num_expected, std::move(options))),
      num_left_(
          num_expected.value_or(std::numeric_limits<std::uint64_t>::max())) {}

void ByteProgress::add(std::uint64_t num_bytes) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t num_shown = std::min(num_bytes, num_left_);
  num_left_ -= num_shown;
  bar_.update(static_cast<std::int64_t>(num_shown));
}

std::shared_ptr<FileSystem> count_writes(
    std::shared_ptr<FileSystem> disk,
    std::shared_ptr<ByteProgress> progress) {
  if (!progress) return disk;
  return std::make_shared<CountedFileSystem>(
      std::move(disk), std::move(progress));
}

std::shared_ptr<FileSystem> make_file_system_with_progress(
    const std::string& description,
    std::uint64_t num_expected) {
  return count_writes(
      make_file_system(),
      std::make_shared<ByteProgress>(
          num_expected, ProgressOptions{.description = description}));
}

}  // namespace accelerate::detail
