#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "format/torch/zip_reader.h"

namespace accelerate::testing {

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

inline std::string little(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) {
    text += static_cast<char>(value >> (8 * i) & 0xff);
  }
  return text;
}

struct ArchiveFile {
  std::string name, contents;
  int method = 0;
};

// Returns an archive as an archiver would write it.
inline std::string archive(
    const std::vector<ArchiveFile>& files,
    bool is_zip64 = false,
    const std::string& comment = "") {
  std::string out, directory;
  for (const ArchiveFile& file : files) {
    const std::uint32_t crc = detail::crc32(as_bytes(file.contents));
    const std::uint64_t begin = out.size();
    const std::string sizes = is_zip64
        ? std::string(8, '\xff')
        : little(file.contents.size(), 4) + little(file.contents.size(), 4);
    const std::string extra = is_zip64
        ? little(1, 2) + little(24, 2) + little(file.contents.size(), 8) +
            little(file.contents.size(), 8) + little(begin, 8)
        : "";
    out += "PK\3\4" + little(20, 2) + little(0, 2) +
        little(static_cast<std::uint64_t>(file.method), 2) + little(0, 4) +
        little(crc, 4) + sizes + little(file.name.size(), 2) + little(3, 2) +
        file.name + "pad" + file.contents;
    directory += "PK\1\2" + little(20, 2) + little(20, 2) + little(0, 2) +
        little(static_cast<std::uint64_t>(file.method), 2) + little(0, 4) +
        little(crc, 4) + sizes + little(file.name.size(), 2) +
        little(extra.size(), 2) + little(0, 2) + little(0, 8) +
        (is_zip64 ? std::string(4, '\xff') : little(begin, 4)) + file.name +
        extra;
  }
  const std::uint64_t begin = out.size();
  out += directory;
  if (is_zip64) {
    const std::uint64_t end = out.size();
    out += "PK\6\6" + little(44, 8) + little(45, 2) + little(45, 2) +
        little(0, 8) + little(files.size(), 8) + little(files.size(), 8) +
        little(directory.size(), 8) + little(begin, 8);
    out += "PK\6\7" + little(0, 4) + little(end, 8) + little(1, 4);
  }
  out += "PK\5\6" + little(0, 4) +
      (is_zip64 ? std::string(12, '\xff')
                : little(files.size(), 2) + little(files.size(), 2) +
               little(directory.size(), 4) + little(begin, 4)) +
      little(comment.size(), 2) + comment;
  return out;
}

}  // namespace accelerate::testing
