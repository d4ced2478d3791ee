#include "format/checkpoint/file_names.h"

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

std::string five_digits(int number) {
  std::string text = std::to_string(number);
  return std::string(text.size() < 5 ? 5 - text.size() : 0, '0') + text;
}

}  // namespace

std::string numbered(const std::string& kind, std::size_t i) {
  return i == 0 ? kind : format("{}_{}", kind, i);
}

std::string section_file(
    const std::string& section,
    bool is_sharded,
    int rank,
    int num_processes) {
  if (!is_sharded) return section + ".safetensors";
  return format(
      "{}-{}-of-{}.safetensors",
      section,
      five_digits(rank + 1),
      five_digits(num_processes));
}

std::string torch_file_of(const std::string& section) {
  return format("pytorch_{}.bin", section);
}

std::string rank_file(int rank) {
  return format("rank-{}.safetensors", five_digits(rank));
}

}  // namespace accelerate::detail
