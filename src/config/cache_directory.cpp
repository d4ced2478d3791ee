#include "config/cache_directory.h"

namespace accelerate::detail {

std::optional<std::filesystem::path> cache_directory(
    const Environment& environment) {
  // The XDG specification ignores relative paths.
  const auto absolute = [&](std::string_view name) {
    const std::filesystem::path path = environment.get(name).value_or("");
    return path.is_absolute() ? std::optional(path) : std::nullopt;
  };
  if (const auto cache = absolute("XDG_CACHE_HOME"))
    return *cache / "accelerate_cpp";
  if (const auto home = absolute("HOME"))
    return *home / ".cache" / "accelerate_cpp";
  return std::nullopt;
}

}  // namespace accelerate::detail
