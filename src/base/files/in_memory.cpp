#include "base/files/in_memory.h"

#include <linux/magic.h>
#include <sys/vfs.h>

namespace accelerate::detail {

bool is_in_memory(const std::filesystem::path& path) {
  struct statfs found {};
  if (::statfs(path.c_str(), &found) != 0) return false;
  return found.f_type == TMPFS_MAGIC || found.f_type == RAMFS_MAGIC ||
      found.f_type == HUGETLBFS_MAGIC;
}

}  // namespace accelerate::detail
