#include "track/profiler/call_stacks.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string_view>

#include <dlfcn.h>
#include <execinfo.h>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/csrc/profiler/unwind/unwind.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// The library of an address, and its function if that is exported.
struct Place {
  std::string library;
  std::uintptr_t offset = 0;
  std::string function;
};

Place place_of(void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return {};
  Place place;
  place.library = std::filesystem::path(info.dli_fname).filename();
  place.offset = reinterpret_cast<std::uintptr_t>(address) -
      reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  if (info.dli_sname != nullptr) place.function = c10::demangle(info.dli_sname);
  return place;
}

bool is_of_program(const Place& place) {
  constexpr std::array<std::string_view, 9> kOthers{
      "libtorch",
      "libc10",
      "libaccelerate",
      "libc.so",
      "libc-",
      "libstdc++",
      "libgomp",
      "ld-linux",
      "libpthread"};
  return !place.library.empty() &&
      std::none_of(kOthers.begin(), kOthers.end(), [&](std::string_view other) {
        return place.library.starts_with(other);
      });
}

// What programs have inside them of headers and of static libraries.
bool is_inlined(std::string_view function) {
  constexpr std::array<std::string_view, 7> kOthers{
      "at::",
      "c10::",
      "torch::",
      "std::",
      "accelerate::detail::",
      "decltype(auto) accelerate::",
      "__gnu_cxx::"};
  return function == "_start" ||
      std::any_of(kOthers.begin(), kOthers.end(), [&](std::string_view other) {
           return function.starts_with(other);
         });
}

std::string hexadecimal_offset(std::uintptr_t number) {
  std::ostringstream text;
  text << "0x" << std::hex << number;
  return text.str();
}

std::string describe(const torch::unwind::Frame& frame, const Place& place) {
  const bool has_name = !frame.funcname.empty() && frame.funcname != "??";
  const std::string name = has_name ? frame.funcname
      : !place.function.empty()
      ? place.function
      : format("{}+{}", place.library, hexadecimal_offset(place.offset));
  // Without debug information some versions of LibTorch give the library and
  // the function's offset there.
  const bool has_line = frame.lineno > 0 && !frame.filename.empty() &&
      frame.filename != "??" &&
      std::filesystem::path(frame.filename).filename() != place.library;
  return has_line ? format("{}({}): {}", frame.filename, frame.lineno, name)
                  : name;
}

std::vector<torch::unwind::Frame> symbolize(const std::vector<void*>& all) {
  try {
    return torch::unwind::symbolize(all, torch::unwind::Mode::fast);
  } catch (const std::exception&) {
    // Not on this kind of processor, or for these debug sections.
    return {};
  }
}

}  // namespace

std::vector<void*> addresses_here() {
  constexpr int kMost = 128;
  std::array<void*, kMost> addresses{};
  const int count = ::backtrace(addresses.data(), kMost);
  // Not braces, which would make a list of two pointers.
  return std::vector<void*>(addresses.begin(), addresses.begin() + count);
}

std::unordered_map<void*, std::string> describe_stacks(
    const std::vector<RecordedEvent>& events) {
  std::unordered_map<void*, Place> places;
  std::vector<void*> addresses;
  for (const RecordedEvent& event : events) {
    for (void* const address : event.stack) {
      const auto [found, is_new] = places.try_emplace(address);
      if (!is_new) continue;
      found->second = place_of(address);
      if (is_of_program(found->second)) addresses.push_back(address);
    }
  }
  std::vector<torch::unwind::Frame> frames = symbolize(addresses);
  frames.resize(addresses.size());
  std::unordered_map<void*, std::string> functions;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const Place& place = places.at(addresses[i]);
    if (is_inlined(frames[i].funcname) || is_inlined(place.function)) continue;
    functions.emplace(addresses[i], describe(frames[i], place));
  }
  return functions;
}

}  // namespace accelerate::detail
