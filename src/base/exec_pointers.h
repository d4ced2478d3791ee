#pragma once

#include <string>
#include <vector>

namespace accelerate::detail {

/// Arguments or variables as exec and posix_spawn take them: pointers into
/// `words`, which must outlive them, and a final null.
inline std::vector<char*> exec_pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace accelerate::detail
