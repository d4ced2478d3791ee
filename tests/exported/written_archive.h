#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/files/files.h"
#include "format/torch/zip_reader.h"

namespace accelerate::testing {

/// The entries of an archive by name, to be changed and written again.
class EditedArchive {
 public:
  explicit EditedArchive(const std::filesystem::path& path) {
    const detail::MappedFile file(path);
    const detail::ZipReader zip(file.bytes(), path.string());
    for (const auto& [name, entry] : zip.entries()) {
      const auto* data = reinterpret_cast<const char*>(entry.bytes.data());
      const std::size_t slash = name.find('/');
      root_ = name.substr(0, slash);
      entries_[name.substr(slash + 1)] = std::string(data, entry.bytes.size());
    }
  }

  std::string& operator[](const std::string& name) { return entries_[name]; }
  void erase(const std::string& name) { entries_.erase(name); }
  void edit(
      const std::string& name,
      const std::function<void(nlohmann::json&)>& change) {
    auto json = nlohmann::json::parse(entries_.at(name));
    change(json);
    entries_[name] = json.dump();
  }
  /// Changes the program.
  void edit(const std::function<void(nlohmann::json&)>& change) {
    edit("models/model.json", change);
  }

  /// Entries of equal contents have the same bytes of the file.
  bool shares_equal_entries = false;

  [[nodiscard]] std::string bytes() const {
    std::string out, directory;
    std::map<std::string, std::size_t> places;
    for (const auto& [name, contents] : entries_) {
      const std::string full = root_ + "/" + name;
      const auto crc = detail::crc32(std::as_bytes(std::span(contents)));
      std::string fields;
      put(fields, 20, 2), put(fields, 0, 2), put(fields, 0, 2);
      put(fields, 0, 4), put(fields, crc, 4);
      put(fields, contents.size(), 4), put(fields, contents.size(), 4);
      put(fields, full.size(), 2), put(fields, 0, 2);
      put(directory, 0x02014b50, 4), put(directory, 20, 2);
      directory += fields;
      put(directory, 0, 2), put(directory, 0, 2), put(directory, 0, 2);
      const auto [place, is_new] = places.emplace(contents, out.size());
      if (is_new || !shares_equal_entries) place->second = out.size();
      put(directory, 0, 4), put(directory, place->second, 4);
      directory += full;
      if (place->second < out.size()) continue;
      put(out, 0x04034b50, 4);
      out += fields + full + contents;
    }
    std::string end;
    put(end, 0x06054b50, 4), put(end, 0, 4);
    put(end, entries_.size(), 2), put(end, entries_.size(), 2);
    put(end, directory.size(), 4), put(end, out.size(), 4), put(end, 0, 2);
    return out + directory + end;
  }
  void write(const std::filesystem::path& path) const {
    const std::string all = bytes();
    std::ofstream(path, std::ios::binary)
        .write(all.data(), static_cast<std::streamsize>(all.size()));
  }

 private:
  static void put(std::string& out, std::uint64_t number, int num_bytes) {
    for (int i = 0; i < num_bytes; ++i)
      out.push_back(static_cast<char>(number >> (8 * i) & 0xff));
  }

  std::string root_;
  std::map<std::string, std::string> entries_;
};

}  // namespace accelerate::testing
