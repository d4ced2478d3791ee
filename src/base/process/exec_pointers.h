#pragma once

#include <string>
#include <vector>

namespace accelerate::detail {

/// Arguments or environment variables as exec and posix_spawn take them:
/// pointers into `strings`, which must outlive them, and a final null.
inline std::vector<char*> exec_pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace accelerate::detail
