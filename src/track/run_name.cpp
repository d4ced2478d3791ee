#include "track/run_name.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <random>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr std::size_t kMostNameBytes = 200;

// Letters that shells and file systems take as they are.
bool is_plain(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
      (letter >= '0' && letter <= '9') || letter == '_' || letter == '.' ||
      letter == '-' || static_cast<unsigned char>(letter) >= 0x80;
}

std::string directory_name(std::string_view subject) {
  std::string name;
  for (const char letter : subject.substr(0, kMostNameBytes))
    name += is_plain(letter) ? letter : '-';
  if (name.empty() || !is_utf8(name)) return "run";
  if (name.front() == '.') name.front() = '-';
  return name;
}

}  // namespace

std::string make_run_name(std::string_view subject) {
  const std::time_t now =
      std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  localtime_r(&now, &parts);
  std::array<char, 32> time{};
  std::strftime(time.data(), time.size(), "%Y%m%d-%H%M%S", &parts);
  std::array<char, 8> digits{};
  std::snprintf(
      digits.data(), digits.size(), "%04x", std::random_device()() & 0xffffU);
  return format(
      "{}-{}-{}", directory_name(subject), time.data(), digits.data());
}

void require_run_name(const std::string& name) {
  if (!name.empty() && name.size() <= kMostNameBytes && name != "." &&
      name != ".." && name.find('/') == std::string::npos &&
      name.find('\0') == std::string::npos) {
    return;
  }
  throw ConfigError(format(
      "[track] run_name is \"{}\", which cannot be the name of a directory; "
      "use at most {} characters without \"/\"",
      printable(name),
      kMostNameBytes));
}

std::vector<std::string> command_of_process() {
  try {
    std::vector<std::string> words =
        split(read_file("/proc/self/cmdline"), '\0');
    if (!words.empty() && words.back().empty()) words.pop_back();
    return words;
  } catch (const Error&) {
    return {};
  }
}

std::string program_name() {
  const std::vector<std::string> words = command_of_process();
  if (words.empty()) return "run";
  return std::filesystem::path(words.front()).filename().string();
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return {};
  return name.data();
}

}  // namespace accelerate::detail
