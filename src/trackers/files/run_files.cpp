#include "trackers/files/run_files.h"

#include <cerrno>
#include <cstring>
#include <exception>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace fs = std::filesystem;

namespace {

// Bounds the lines of metrics that are logged for hours without a flush, and
// those of a metric that cannot be written.
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

void copy_into(const fs::path& given, const fs::path& directory) {
  // "checkpoint/" has no name after its last slash.
  const fs::path source = given.has_filename() ? given : given.parent_path();
  const fs::path target = directory / source.filename();
  std::error_code problem;
  // All paths come first, as `directory` may lie in `source`.
  std::vector<fs::path> found{source};
  if (fs::is_directory(source, problem)) {
    fs::recursive_directory_iterator each(
        source, fs::directory_options::follow_directory_symlink, problem);
    for (; !problem && each != fs::recursive_directory_iterator();
         each.increment(problem))
      found.push_back(each->path());
  }
  if (problem) refuse_copy(source, directory, problem);
  for (const fs::path& path : found) {
    const fs::path to =
        path == source ? target : target / path.lexically_relative(source);
    if (!fs::is_directory(path, problem)) {
      copy_run_file(path, to);
      continue;
    }
    if (fs::is_symlink(to, problem))
      refuse_copy(path, to, std::make_error_code(std::errc::file_exists));
    fs::create_directories(to, problem);
    if (problem) refuse_copy(path, to, problem);
  }
}

void attempt_all(std::initializer_list<std::function<void()>> calls) {
  std::exception_ptr failure;
  for (const auto& call : calls) {
    try {
      call();
    } catch (const Error&) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

void GrowingFiles::append(const fs::path& path, std::string_view text) {
  waiting_[path] += text;
  num_new_bytes_ += text.size();
  if (num_new_bytes_ <= kMostWaitingBytes) return;
  try {
    flush();
  } catch (const Error&) {
    // The text is still pending, and the next flush() reports the failure.
  }
}

void GrowingFiles::flush() {
  std::exception_ptr failure;
  num_new_bytes_ = 0;
  for (auto each = waiting_.begin(); each != waiting_.end();) {
    auto& [path, text] = *each;
    std::string_view rest = text;
    try {
      create_directory_of(path);
      WrittenFile(path, O_APPEND).write_all(rest);
      each = waiting_.erase(each);
    } catch (const Error&) {
      if (!failure) failure = std::current_exception();
      // The first lines are kept, without a partial one.
      if (rest.size() > kMostWaitingBytes)
        rest = rest.substr(0, rest.rfind('\n', kMostWaitingBytes - 1) + 1);
      text = std::string(rest);
      ++each;
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace accelerate::detail
