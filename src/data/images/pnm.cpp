#include <algorithm>
#include <cmath>

#include "base/text/text.h"
#include "data/images/image_checks.h"

namespace accelerate::detail {

namespace {

constexpr std::int64_t kMostValue = 65535;

/// Reads the numbers of a header.
class HeaderReader {
 public:
  explicit HeaderReader(ImageBytes bytes) : bytes_(bytes) {}

  // A number, and the one white space after it.
  std::int64_t number() {
    std::string digits;
    while (true) {
      if (at_ == bytes_.size()) throw ImageFault{"its header is truncated"};
      const char c = static_cast<char>(bytes_[at_++]);
      if (c == '#') {
        skip_line();
      } else if (!is_space(c)) {
        digits += c;
      } else if (!digits.empty()) {
        break;
      }
      // Long enough for any image.
      if (digits.size() > 10) break;
    }
    const auto value = parse_int(digits);
    if (!value) {
      throw ImageFault{format(
          "its header has '{}' in place of a number", printable(digits))};
    }
    return *value;
  }
  [[nodiscard]] std::size_t position() const { return at_; }

 private:
  static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
  void skip_line() {
    while (at_ < bytes_.size() && bytes_[at_] != '\n' && bytes_[at_] != '\r')
      ++at_;
    if (at_ < bytes_.size()) ++at_;
  }

  ImageBytes bytes_;
  std::size_t at_ = 2;  // after the magic number
};

std::uint8_t scaled(double value, double largest) {
  // Rounds halves to even, as Python does.
  return static_cast<std::uint8_t>(
      std::min(255.0, std::nearbyint(value / largest * 255)));
}

}  // namespace

DecodedImage decode_pnm(ImageBytes bytes) {
  const char kind = static_cast<char>(bytes[1]);
  if (kind != '5' && kind != '6') {
    throw ImageFault{format(
        "it is a PNM file of kind P{}; only binary PGM and "
        "PPM, P5 and P6, are read",
        kind)};
  }
  HeaderReader header(bytes);
  const std::int64_t width = header.number();
  const std::int64_t height = header.number();
  const std::int64_t largest = header.number();
  require_image_size(width, height);
  if (largest < 1 || largest > kMostValue) {
    throw ImageFault{format(
        "its largest value must be from 1 to {}, but is {}",
        kMostValue,
        largest)};
  }
  const bool is_wide = largest > 255;
  if (is_wide && kind == '5') throw ImageFault{std::string(kWideGrey)};
  const int channels = kind == '5' ? 1 : 3;
  const auto count = static_cast<std::size_t>(width * height * channels);
  const ImageBytes data = bytes.subspan(header.position());
  if (data.size() / (is_wide ? 2 : 1) < count) {
    throw ImageFault{format(
        "it is truncated: {} of {} bytes of pixels are there",
        data.size(),
        count * (is_wide ? 2 : 1))};
  }
  DecodedImage pixels{
      static_cast<int>(width), static_cast<int>(height), channels};
  pixels.values.assign(
      data.begin(), data.begin() + static_cast<std::ptrdiff_t>(count));
  if (largest == 255) return pixels;
  for (std::size_t i = 0; i < count; ++i) {
    const unsigned value =
        is_wide ? data[2 * i] * 256U + data[2 * i + 1] : data[i];
    pixels.values[i] = scaled(value, static_cast<double>(largest));
  }
  return pixels;
}

}  // namespace accelerate::detail
