#include "engines/disk_directories.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "base/files/in_memory.h"
#include "base/text/text.h"

namespace accelerate::detail {

std::vector<std::string> directory_complaints(const DiskRequest& request) {
  std::vector<std::string> complaints;
  for (const std::string& directory :
       {request.directory, request.parameter_directory}) {
    if (directory.empty()) continue;
    const auto complain = [&](std::string_view wanted, std::string_view found) {
      complaints.push_back(format(
          "[files] {}, where shards are kept, must be {}, but {}",
          printable(directory),
          wanted,
          found));
    };
    std::error_code failed;
    const auto status = std::filesystem::status(directory, failed);
    if (status.type() == std::filesystem::file_type::not_found) {
      complain("a directory", "does not exist; create it");
    } else if (failed) {
      complain("a directory", "cannot be read: " + failed.message());
    } else if (!std::filesystem::is_directory(status)) {
      complain("a directory", "is not one");
    } else if (::access(directory.c_str(), W_OK | X_OK) != 0) {
      complain("writable", "is not");
    } else if (!request.may_be_in_memory && is_in_memory(directory)) {
      complain(
          "on a disk",
          "is in memory (tmpfs), where files save nothing; name another, or "
          "set offload_directory_in_memory to true");
    }
  }
  return complaints;
}

}  // namespace accelerate::detail
