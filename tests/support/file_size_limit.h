#pragma once

#include <csignal>

#include <sys/resource.h>

namespace accelerate::testing {

/// Limits the size of the files that this process writes, while the object
/// lives: larger writes fail as on a full disk, with EFBIG.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t num_bytes)
      : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = num_bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

}  // namespace accelerate::testing
