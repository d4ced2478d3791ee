#pragma once

#include <string>
#include <vector>

namespace accelerate::detail {

/// As exec and posix_spawn take arguments and variables: pointers into `words`,
/// which must outlive them, and a null at the end.
inline std::vector<char*> exec_words(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace accelerate::detail
