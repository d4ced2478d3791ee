// replay CORPUS: runs every kept input through its target, in any build, and
// fails if an input takes more memory than its target allows. The inputs of a
// target are in the directory named after it.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/memory_in_use.h"
#include "fuzz/targets.h"

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  if (argc != 2) return 2;
  std::size_t total = 0;
  bool is_good = true;
  for (const accelerate::fuzz::Target& target : accelerate::fuzz::kTargets) {
    const fs::path directory = fs::path(argv[1]) / target.name;
    if (!fs::is_directory(directory)) {
      std::printf("%s: no inputs\n", target.name.data());
      continue;
    }
    std::size_t count = 0, most = 0;
    for (const auto& entry : fs::directory_iterator(directory)) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
      const std::size_t memory = accelerate::fuzz::peak_of_memory(
          [&] { target.run(std::as_bytes(std::span(bytes))); });
      most = std::max(most, memory);
      if (memory >
          target.other_memory + target.memory_per_byte * bytes.size()) {
        std::printf(
            "%s: %zu bytes of input took %zu bytes of memory\n",
            entry.path().c_str(),
            bytes.size(),
            memory);
        is_good = false;
      }
      ++count;
    }
    std::printf(
        "%s: %zu inputs, at most %zu bytes of memory\n",
        target.name.data(),
        count,
        most);
    total += count;
  }
  if (total == 0) return 1;
  std::printf("all of %zu inputs read or refused\n", total);
  return is_good && total > 0 ? 0 : 1;
}
