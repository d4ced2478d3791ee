#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace accelerate::detail {

/// What a progress bar shows at one moment.
struct Meter {
  std::string description = {};
  std::int64_t count = 0;
  std::optional<std::int64_t> total = std::nullopt;
  double elapsed_seconds = 0;
  /// Items per second; unset while unknown.
  std::optional<double> rate = std::nullopt;
  std::string postfix = {};
  std::string unit = "it";
  bool unit_scale = false;
  double unit_divisor = 1000;
};

struct MeterStyle {
  /// Whether there is a bar between the percentage and the counts.
  bool has_bar = true;
  bool ascii = false;
  /// 0: no limit.
  int columns = 0;
};

/// The line as tqdm's users know it: " 42%|####      | 42/100 [00:03<00:04,
/// 12.30it/s, loss=0.5]". Control characters in texts are escaped.
std::string meter_line(const Meter& meter, const MeterStyle& style);

/// "03:07", "1:02:03".
std::string clock_text(double seconds);
/// 1.23k: three digits and a prefix.
std::string scaled_text(double number, double divisor);

}  // namespace accelerate::detail
