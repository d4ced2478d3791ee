#include "format/journal/journal_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include <accelerate/error.h>

#include "base/files/file_system.h"
#include "base/files/files.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;

class PosixJournalFile final : public JournalFile {
 public:
  PosixJournalFile(
      int file,
      std::shared_ptr<FileSystem> disk,
      std::vector<fs::path> directories)
      : file_(file),
        disk_(std::move(disk)),
        directories_(std::move(directories)) {}
  ~PosixJournalFile() override { ::close(file_); }

  int write_at(std::uint64_t offset, std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t count = ::pwrite(
          file_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return errno;
      if (count == 0) return ENOSPC;
      offset += static_cast<std::uint64_t>(count);
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return 0;
  }
  int sync() override {
    if (::fdatasync(file_) != 0) return errno;
    sync_names();
    return 0;
  }
  int truncate(std::uint64_t size) override {
    return ::ftruncate(file_, static_cast<off_t>(size)) == 0 ? 0 : errno;
  }

 private:
  // A directory that may be written but not read cannot be synced; its journal
  // is still written.
  void sync_names() {
    std::erase_if(directories_, [&](const fs::path& each) {
      try {
        disk_->sync_directory(each);
        return true;
      } catch (const Error&) {
        return false;
      }
    });
  }

  int file_;
  std::shared_ptr<FileSystem> disk_;
  std::vector<fs::path> directories_;  // whose entries may not be durable
};

[[noreturn]] void
throw_unusable(const fs::path& path, const char* what, int problem) {
  throw Error(format(
      "[format] the journal {} cannot be {}: {}",
      path.string(),
      what,
      std::strerror(problem)));
}

// Others may write to the directory as well, so links are not followed.
int open_for_writing(const fs::path& path) {
  constexpr std::string_view kArea = "[files] ";
  try {
    return open_regular_file(path, O_RDWR | O_CREAT | O_NOFOLLOW);
  } catch (const Error& error) {
    std::string_view why = error.what();
    if (why.starts_with(kArea)) why.remove_prefix(kArea.size());
    throw Error(format("[format] the journal cannot be opened: {}", why));
  }
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Ignores failures, and files that other processes create meanwhile: opening
// the file will notice them.
template <class Make>
void make_unless_refused(const Make& make) {
  try {
    make();
  } catch (const Error&) {
  }
}

// Creates what is missing. Returns the directories that contain the names of
// the journal and of its directories: as absolute paths, since programs may
// change their working directory.
std::vector<fs::path> make_names(const fs::path& given, FileSystem& disk) {
  std::error_code ignored;
  const fs::path absolute = fs::absolute(given, ignored);
  const fs::path& path = ignored ? given : absolute;
  std::vector<fs::path> missing;
  for (fs::path each = directory_of(path);
       !is_there(each) && each != directory_of(each);
       each = directory_of(each))
    missing.push_back(each);
  // An earlier process may have ended before it could sync these two.
  std::vector<fs::path> changed{
      directory_of(path), directory_of(directory_of(path))};
  for (auto each = missing.rbegin(); each != missing.rend(); ++each) {
    make_unless_refused([&] { disk.create_directory(*each); });
    changed.push_back(directory_of(*each));
  }
  if (!is_there(path)) make_unless_refused([&] { (void)disk.create(path); });
  return changed;
}

}  // namespace

std::unique_ptr<JournalFile> open_journal_file(
    const fs::path& path,
    std::shared_ptr<FileSystem> disk) {
  auto directories = make_names(path, *disk);
  const int file = open_for_writing(path);
  if (::flock(file, LOCK_EX | LOCK_NB) == 0)
    return std::make_unique<PosixJournalFile>(
        file, std::move(disk), std::move(directories));
  const int problem = errno;
  ::close(file);
  if (problem != EWOULDBLOCK) throw_unusable(path, "locked", problem);
  throw Error(format(
      "[format] another process is writing the journal {}; give this run a "
      "name of its own",
      path.string()));
}

}  // namespace accelerate::detail
