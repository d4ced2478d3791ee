#include "trackers/files/run_files.h"

#include <cerrno>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace fs = std::filesystem;

namespace {

// Bounds the lines of a metric that is logged for hours without a flush.
constexpr std::size_t kMostWaitingBytes = std::size_t{1} << 20U;

[[noreturn]] void refuse_write(const fs::path& path, int problem) {
  throw Error(format(
      "[trackers] cannot write {}: {}", path.string(), std::strerror(problem)));
}

[[noreturn]] void refuse_copy(
    const fs::path& source,
    const fs::path& target,
    std::error_code problem) {
  throw Error(format(
      "[trackers] cannot copy {} to {}: {}",
      source.string(),
      target.string(),
      problem.message()));
}

void create_directory_of(const fs::path& path) {
  std::error_code problem;
  fs::create_directories(directory_of(path), problem);
  if (problem) refuse_write(directory_of(path), problem.value());
}

/// A file open for writing. Links are refused: DVC, for one, replaces files by
/// links into its cache, whose files must not change.
class WrittenFile {
 public:
  WrittenFile(const fs::path& path, int flags)
      : path_(path),
        file_(
            open_regular_file(path, O_WRONLY | O_CREAT | O_NOFOLLOW | flags)) {}
  WrittenFile(const WrittenFile&) = delete;
  WrittenFile& operator=(const WrittenFile&) = delete;
  ~WrittenFile() { ::close(file_); }

  /// Removes what it wrote from the front of `text`.
  void write_all(std::string_view& text) {
    while (!text.empty()) {
      const ssize_t written = ::write(file_, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) refuse_write(path_, errno);
      text.remove_prefix(static_cast<std::size_t>(written));
    }
  }

 private:
  const fs::path& path_;
  int file_;
};

}  // namespace

fs::path path_below(const fs::path& directory, std::string_view name) {
  const fs::path relative(name);
  bool leaves = relative.empty() || relative.is_absolute() ||
      name.find('\0') != std::string_view::npos;
  for (const fs::path& part : relative) leaves = leaves || part == "..";
  if (leaves) {
    throw Error(format(
        "[trackers] \"{}\" cannot be the name of a file below {}; use a name "
        "without \"..\" that does not begin with \"/\"",
        printable(name),
        directory.string()));
  }
  return directory / relative;
}

void write_run_file(const fs::path& path, std::string_view contents) {
  create_directory_of(path);
  WrittenFile(path, O_TRUNC).write_all(contents);
}

void copy_run_file(const fs::path& file, const fs::path& target) {
  create_directory_of(target);
  std::error_code problem;
  if (fs::is_symlink(target, problem))
    refuse_copy(file, target, std::make_error_code(std::errc::file_exists));
  fs::copy_file(file, target, fs::copy_options::overwrite_existing, problem);
  if (problem) refuse_copy(file, target, problem);
}

void copy_into(const fs::path& source, const fs::path& directory) {
  std::error_code problem;
  fs::create_directories(directory, problem);
  // "checkpoint/" has no name after its last slash.
  const fs::path name = source.has_filename() ? source.filename()
                                              : source.parent_path().filename();
  if (!problem) {
    fs::copy(
        source,
        directory / name,
        fs::copy_options::recursive | fs::copy_options::overwrite_existing,
        problem);
  }
  if (problem) refuse_copy(source, directory, problem);
}

void GrowingFiles::append(const fs::path& path, std::string_view text) {
  waiting_[path] += text;
  num_bytes_ += text.size();
  if (num_bytes_ > kMostWaitingBytes) flush();
}

void GrowingFiles::flush() {
  while (!waiting_.empty()) {
    const auto first = waiting_.begin();
    create_directory_of(first->first);
    std::string_view rest = first->second;
    try {
      WrittenFile(first->first, O_APPEND).write_all(rest);
    } catch (const Error&) {
      num_bytes_ -= first->second.size() - rest.size();
      first->second = std::string(rest);
      throw;
    }
    num_bytes_ -= first->second.size();
    waiting_.erase(first);
  }
}

}  // namespace accelerate::detail
