#include "dataset.h"

#include <array>
#include <charconv>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <vector>

#include <ATen/Functions.h>
#include <zlib.h>

namespace {

constexpr std::int64_t kPixels = 64;
constexpr float kBrightest = 16;

std::string read_compressed(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(
      gzopen(path.c_str(), "rb"), &gzclose);
  if (!file)
    throw std::runtime_error(
        "cannot open \"" + path + "\"; name it with --data");
  std::string text;
  std::array<char, 1 << 16> block;
  int count = 0;
  while ((count = gzread(file.get(), block.data(), block.size())) > 0) {
    text.append(block.data(), static_cast<std::size_t>(count));
  }
  if (count < 0)
    throw std::runtime_error("\"" + path + "\" is not a complete gzip file");
  return text;
}

[[noreturn]] void complain(const std::string& path, std::size_t line) {
  throw std::runtime_error(
      "\"" + path + "\" line " + std::to_string(line) +
      ": expected 64 pixels of 0 to 16 and a digit, between commas");
}

Digits rows_of(const Digits& all, const std::vector<std::int64_t>& rows) {
  const at::Tensor index = at::tensor(rows, at::kLong);
  return {all.images.index_select(0, index), all.labels.index_select(0, index)};
}

}  // namespace

DigitsSplit read_digits(const std::string& path) {
  const std::string text = read_compressed(path);
  std::vector<float> pixels;
  std::vector<std::int64_t> labels;
  std::size_t line = 1;
  std::int64_t column = 0;
  for (const char* at = text.data(); at < text.data() + text.size(); ++at) {
    int value = 0;
    const auto [end, error] =
        std::from_chars(at, text.data() + text.size(), value);
    const bool is_label = column == kPixels;
    if (error != std::errc() || end == text.data() + text.size() || value < 0 ||
        value > (is_label ? 9 : 16) || *end != (is_label ? '\n' : ',')) {
      complain(path, line);
    }
    at = end;
    if (is_label) {
      labels.push_back(value);
      column = 0;
      ++line;
    } else {
      pixels.push_back(static_cast<float>(value) / kBrightest);
      ++column;
    }
  }
  if (column != 0) complain(path, line);
  const auto count = static_cast<std::int64_t>(labels.size());
  const Digits all{
      at::tensor(pixels).view({count, 1, 8, 8}), at::tensor(labels, at::kLong)};
  std::vector<std::int64_t> train, test;
  for (std::int64_t row = 0; row < count; ++row)
    (row % 5 == 4 ? test : train).push_back(row);
  return {rows_of(all, train), rows_of(all, test)};
}
