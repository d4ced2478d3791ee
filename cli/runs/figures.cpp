#include "cli/runs/figures.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "base/text/text.h"

namespace accelerate::cli {

namespace {

constexpr std::string_view kLower[] = {
    "loss",
    "error",
    "err",
    "perplexity",
    "ppl",
    "mse",
    "mae",
    "rmse",
    "wer",
    "cer",
    "nll",
    "bpb",
    "fid",
    "seconds",
    "latency",
    "divergence",
    "kl"};
constexpr std::string_view kHigher[] = {
    "accuracy",   "acc",     "f1",   "auc",   "auroc", "auprc", "precision",
    "recall",     "score",   "bleu", "rouge", "iou",   "miou",  "map",
    "reward",     "return",  "dice", "r2",    "psnr",  "ssim",  "mcc",
    "throughput", "correct", "top1", "top5"};

// The words of a name: "eval/top1_acc" has eval, top1 and acc.
std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words(1);
  char before = 0;
  for (const char c : name) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool is_digit = c >= '0' && c <= '9';
    const bool begins_word =
        c >= 'A' && c <= 'Z' && before >= 'a' && before <= 'z';
    if (begins_word || !(is_letter || is_digit)) words.emplace_back();
    if (is_letter || is_digit) words.back() += c;
    before = c;
  }
  for (std::string& word : words) word = detail::to_lower(word);
  return words;
}

}  // namespace

Better better_values(std::string_view name) {
  const std::vector<std::string> words = words_of(name);
  const auto has = [&](const auto& list) {
    return std::ranges::any_of(words, [&](const auto& word) {
      return std::ranges::find(list, word) != std::end(list);
    });
  };
  // "tokens_per_second" grows even though its seconds shrink.
  if (std::ranges::find(words, "per") != words.end()) return Better::higher;
  if (has(kLower)) return Better::lower;
  return has(kHigher) ? Better::higher : Better::unknown;
}

const RunRecord::Point* Extremes::best(Better better) const {
  switch (better) {
    case Better::lower:
      return min;
    case Better::higher:
      return max;
    case Better::unknown:
      break;
  }
  return nullptr;
}

Extremes extremes_of(const std::vector<RunRecord::Point>& points) {
  Extremes found;
  for (const RunRecord::Point& point : points) {
    found.last = &point;
    if (std::isnan(point.value)) continue;
    if (found.min == nullptr || point.value < found.min->value)
      found.min = &point;
    if (found.max == nullptr || point.value > found.max->value)
      found.max = &point;
  }
  return found;
}

std::string short_number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  return text[0] == '-' && text[1] == 'n' ? "nan" : text.data();
}

std::string exact_number(double value) {
  if (std::isnan(value)) return "nan";
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.begin(), text.end(), value).ptr;
  return {text.begin(), end};
}

std::string duration_text(double seconds) {
  std::array<char, 48> text{};
  if (seconds < 60) {
    std::snprintf(text.data(), text.size(), "%.1f s", seconds);
    return text.data();
  }
  const auto whole = static_cast<long long>(seconds);
  if (whole < 3600) {
    std::snprintf(
        text.data(), text.size(), "%lld min %02lld s", whole / 60, whole % 60);
  } else {
    std::snprintf(
        text.data(),
        text.size(),
        "%lld h %02lld min",
        whole / 3600,
        whole / 60 % 60);
  }
  return text.data();
}

std::string time_text(double seconds) {
  const auto whole = static_cast<std::time_t>(seconds);
  std::tm local{};
  std::array<char, 32> text{};
  if (localtime_r(&whole, &local) == nullptr) return "?";
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &local);
  return text.data();
}

}  // namespace accelerate::cli
