#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace accelerate::detail {

/// Compiled programs in files, one each, which any number of processes may read
/// and write. Their code runs on the device, so nothing is read from a
/// directory that other users own or may write.
class ProgramCache {
 public:
  explicit ProgramCache(std::filesystem::path directory);

  /// Returns the program of `key`, one line that names all that it depends on;
  /// calls `make` if there is none or its file is damaged, and keeps the
  /// result. A directory that cannot be used only costs time.
  [[nodiscard]] std::string get(
      std::string_view key,
      const std::function<std::string()>& make) const;

  /// The path at which the program of a key is kept.
  [[nodiscard]] std::filesystem::path path_of(std::string_view key) const;
  /// Why nothing is kept or read; empty if the directory can be used. Creates
  /// it, for this user only.
  [[nodiscard]] std::string problem() const;

 private:
  std::filesystem::path directory_;
};

/// A hash of texts, 64-bit FNV-1a, in hexadecimal digits.
std::string hash_text(std::string_view text);

}  // namespace accelerate::detail
