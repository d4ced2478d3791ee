#include "cli/commands/written_bytes.h"

#include <mutex>
#include <utility>

#include <accelerate/progress.h>

namespace accelerate::cli {

namespace {

namespace fs = std::filesystem;
using detail::Bytes;

class WrittenBytes {
 public:
  WrittenBytes(const std::string& description, std::uint64_t expected)
      : bar_(
            {.description = description,
             .total = static_cast<std::int64_t>(expected),
             .unit = "B",
             .unit_scale = true,
             .leave = false}) {}

  void add(std::span<const Bytes> pieces) {
    std::int64_t num = 0;
    for (const Bytes& piece : pieces)
      num += static_cast<std::int64_t>(piece.size());
    const std::lock_guard lock(mutex_);
    bar_.update(num);
  }

 private:
  std::mutex mutex_;
  Progress bar_;
};

class CountedFile : public detail::OutputFile {
 public:
  CountedFile(std::unique_ptr<OutputFile> file, WrittenBytes& written)
      : file_(std::move(file)), written_(written) {}

  using OutputFile::write_at;
  void write_at(std::uint64_t offset, std::span<const Bytes> pieces) override {
    file_->write_at(offset, pieces);
    written_.add(pieces);
  }
  void finish() override { file_->finish(); }

 private:
  std::unique_ptr<OutputFile> file_;
  WrittenBytes& written_;
};

class CountedFileSystem : public detail::FileSystem {
 public:
  CountedFileSystem(const std::string& description, std::uint64_t expected)
      : written_(description, expected) {}

  std::unique_ptr<detail::OutputFile> create(const fs::path& path) override {
    return std::make_unique<CountedFile>(disk_->create(path), written_);
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
  std::shared_ptr<detail::FileSystem> disk_ = detail::make_file_system();
  WrittenBytes written_;
};

}  // namespace

std::shared_ptr<detail::FileSystem> make_disk_with_progress(
    const std::string& description,
    std::uint64_t expected_bytes) {
  return std::make_shared<CountedFileSystem>(description, expected_bytes);
}

}  // namespace accelerate::cli
