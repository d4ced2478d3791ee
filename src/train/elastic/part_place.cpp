#include "train/elastic/part_place.h"

#include <string_view>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr std::string_view kMachine = "machine_";
constexpr std::string_view kOf = "_of_";

}  // namespace

std::string shape_of(const std::vector<int>& firsts, int num_ranks) {
  std::string text;
  int count = 0;
  for (std::size_t i = 0; i < firsts.size(); ++i) {
    const auto size_of = [&](std::size_t machine) {
      const int end =
          machine + 1 < firsts.size() ? firsts[machine + 1] : num_ranks;
      return end - firsts[machine];
    };
    ++count;
    if (i + 1 < firsts.size() && size_of(i + 1) == size_of(i)) continue;
    text += format("{}{}x{}", text.empty() ? "" : ",", count, size_of(i));
    count = 0;
  }
  return text;
}

std::string part_directory(std::size_t machine, const std::string& shape) {
  return format("{}{}{}{}", kMachine, machine, kOf, shape);
}

std::optional<PartPlace> parse_part_directory(const std::string& name) {
  const std::size_t of = name.find(kOf);
  if (!name.starts_with(kMachine) || of == std::string::npos)
    return std::nullopt;
  const std::size_t begin = kMachine.size();
  const auto part = parse_int(name.substr(begin, of - begin));
  if (!part || *part < 0) return std::nullopt;
  PartPlace place{
      name.substr(of + kOf.size()), static_cast<std::size_t>(*part)};
  for (const std::string& each : split(place.shape, ',')) {
    const auto count = parse_int(each.substr(0, each.find('x')));
    if (!count || *count < 1) return std::nullopt;
    place.num_parts += static_cast<std::size_t>(*count);
  }
  return place;
}

}  // namespace accelerate::detail
