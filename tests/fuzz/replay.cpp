// replay CORPUS: runs every kept input through its target, in any build. The
// inputs of a target are in the directory of its name.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/targets.h"

int main(int, char** argv) {
  std::size_t total = 0;
  for (const accelerate::fuzz::Target& target : accelerate::fuzz::kTargets) {
    std::size_t count = 0;
    const auto inputs = std::filesystem::path(argv[1]) / target.name;
    // A target need not be in every corpus.
    if (!std::filesystem::exists(inputs)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(inputs)) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
      target.run(std::as_bytes(std::span(bytes)));
      ++count;
    }
    std::printf("%s: %zu inputs\n", target.name.data(), count);
    if (count == 0) return 1;
    total += count;
  }
  if (total == 0) return 1;
  std::printf("all of %zu inputs read or refused\n", total);
  return 0;
}
