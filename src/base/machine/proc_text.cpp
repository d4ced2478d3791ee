#include "base/machine/proc_text.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <vector>

namespace accelerate::detail {

namespace {

constexpr std::uint64_t kSectorBytes = 512;  // whatever the disk's sector size
constexpr std::uint64_t kKiB = 1024;

std::string_view next_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view kBlank = " \t\r";
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t begin = line.find_first_not_of(kBlank);
    if (begin == std::string_view::npos) return words;
    line.remove_prefix(begin);
    const std::size_t end = std::min(line.find_first_of(kBlank), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

std::optional<std::uint64_t> number_of(std::string_view word) {
  std::uint64_t number = 0;
  const auto [end, error] =
      std::from_chars(word.data(), word.data() + word.size(), number);
  if (word.empty() || error != std::errc() || end != word.data() + word.size())
    return std::nullopt;
  return number;
}

std::uint64_t sum(std::uint64_t a, std::uint64_t b) {
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  return a > kMost - b ? kMost : a + b;
}

std::uint64_t product(std::uint64_t a, std::uint64_t b) {
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  return a > kMost / b ? kMost : a * b;
}

bool ends_in_digit(std::string_view name) {
  return !name.empty() && name.back() >= '0' && name.back() <= '9';
}

// sda, vdb, xvdc and hdd, but not sda1; nvme0n1 and mmcblk0, but not nvme0n1p2.
// Devices built from others (dm-0, md1, loop2) would count twice.
bool is_disk(std::string_view name) {
  for (const std::string_view letters : {"sd", "vd", "hd", "xvd"}) {
    if (name.starts_with(letters)) return !ends_in_digit(name);
  }
  for (const std::string_view numbered : {"nvme", "mmcblk"}) {
    if (!name.starts_with(numbered)) continue;
    const std::size_t last = name.find_last_not_of("0123456789");
    return last != std::string_view::npos && name[last] != 'p';
  }
  return false;
}

}  // namespace

std::optional<CpuTicks> cpu_ticks(std::string_view text) {
  // user nice system idle iowait irq softirq steal; guests are part of user.
  constexpr std::size_t kIdle = 4, kWaiting = 5, kMostFields = 8;
  const auto words = words_of(next_line(text));
  if (words.size() <= kIdle || words[0] != "cpu") return std::nullopt;
  CpuTicks ticks;
  for (std::size_t i = 1; i < std::min(words.size(), kMostFields + 1); ++i) {
    const auto number = number_of(words[i]);
    if (!number) return std::nullopt;
    ticks.all = sum(ticks.all, *number);
    if (i != kIdle && i != kWaiting) ticks.busy = sum(ticks.busy, *number);
  }
  return ticks;
}

std::optional<std::uint64_t> resident_pages(std::string_view text) {
  const auto words = words_of(next_line(text));
  return words.size() > 1 ? number_of(words[1]) : std::nullopt;
}

std::optional<std::uint64_t> meminfo_bytes(
    std::string_view text,
    std::string_view key) {
  while (!text.empty()) {
    const auto words = words_of(next_line(text));
    if (words.size() < 2 || !words[0].ends_with(':') ||
        words[0].substr(0, words[0].size() - 1) != key) {
      continue;
    }
    const auto number = number_of(words[1]);
    if (!number) return std::nullopt;
    return words.size() > 2 && words[2] == "kB" ? product(*number, kKiB)
                                                : *number;
  }
  return std::nullopt;
}

ByteCounts disk_bytes(std::string_view text) {
  // major minor name reads merged sectors milliseconds writes merged sectors
  constexpr std::size_t kName = 2, kRead = 5, kWritten = 9;
  ByteCounts bytes;
  while (!text.empty()) {
    const auto words = words_of(next_line(text));
    if (words.size() <= kWritten || !is_disk(words[kName])) continue;
    const auto read = number_of(words[kRead]);
    const auto written = number_of(words[kWritten]);
    if (!read || !written) continue;
    bytes.in = sum(bytes.in, product(*read, kSectorBytes));
    bytes.out = sum(bytes.out, product(*written, kSectorBytes));
  }
  return bytes;
}

ByteCounts network_bytes(std::string_view text) {
  // "name: bytes packets errs drop fifo frame compressed multicast bytes ..."
  constexpr std::size_t kSent = 8;
  ByteCounts bytes;
  while (!text.empty()) {
    const std::string_view line = next_line(text);
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const auto name = words_of(line.substr(0, colon));
    const auto words = words_of(line.substr(colon + 1));
    if (name.size() != 1 || name[0] == "lo" || words.size() <= kSent) continue;
    const auto in = number_of(words[0]);
    const auto out = number_of(words[kSent]);
    if (!in || !out) continue;
    bytes.in = sum(bytes.in, *in);
    bytes.out = sum(bytes.out, *out);
  }
  return bytes;
}

namespace {

// Seen from inside another namespace, a path may lead outside the tree.
std::optional<std::string_view> path_inside(std::string_view path) {
  if (path.find("..") != std::string_view::npos) return std::nullopt;
  return path;
}

}  // namespace

std::optional<std::string_view> cgroup_path(std::string_view text) {
  constexpr std::string_view kUnified = "0::/";
  while (!text.empty()) {
    const std::string_view line = next_line(text);
    if (line.starts_with(kUnified))
      return path_inside(line.substr(kUnified.size()));
  }
  return std::nullopt;
}

std::optional<std::string_view> cgroup_path(
    std::string_view text,
    std::string_view controller) {
  while (!text.empty()) {
    const std::string_view line = next_line(text);
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(":/", first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos)
      continue;
    std::string_view controllers = line.substr(first + 1, second - first - 1);
    while (!controllers.empty()) {
      const std::size_t comma =
          std::min(controllers.find(','), controllers.size());
      if (controllers.substr(0, comma) == controller)
        return path_inside(line.substr(second + 2));
      controllers.remove_prefix(std::min(comma + 1, controllers.size()));
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> lone_number(std::string_view text) {
  const auto words = words_of(next_line(text));
  return words.size() == 1 ? number_of(words[0]) : std::nullopt;
}

std::optional<std::uint64_t> keyed_number(
    std::string_view text,
    std::string_view key) {
  while (!text.empty()) {
    const auto words = words_of(next_line(text));
    if (words.size() == 2 && words[0] == key) return number_of(words[1]);
  }
  return std::nullopt;
}

}  // namespace accelerate::detail
