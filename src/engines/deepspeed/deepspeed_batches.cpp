#include "engines/deepspeed/deepspeed_batches.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using Json = nlohmann::json;

constexpr std::string_view kTotal = "train_batch_size";
constexpr std::string_view kMicro = "train_micro_batch_size_per_gpu";
constexpr std::string_view kSteps = "gradient_accumulation_steps";

std::optional<std::int64_t> number_at(
    const Json& config,
    std::string_view key) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null() || *found == "auto")
    return std::nullopt;
  if (!found->is_number_integer() || found->get<std::int64_t>() < 1) {
    throw ConfigError(format(
        "[config] {} of the DeepSpeed configuration is {}, but must be a whole "
        "number of at least 1, or \"auto\"",
        key,
        found->dump()));
  }
  return found->get<std::int64_t>();
}

void fill(Json& config, std::string_view key, std::int64_t value) {
  const auto found = config.find(key);
  if (found != config.end() && *found == "auto") *found = value;
}

// The micro-batch that the configuration requests; unset if it requests none.
std::optional<std::int64_t> requested_micro_batch(
    const Json& config,
    std::int64_t batches_per_step) {
  const auto micro = number_at(config, kMicro);
  const auto total = number_at(config, kTotal);
  if (!total) return micro;
  const std::int64_t micro_of_total = *total / batches_per_step;
  if (*total % batches_per_step != 0 ||
      micro.value_or(micro_of_total) != micro_of_total) {
    throw ConfigError(format(
        "[config] train_batch_size of the DeepSpeed configuration is {}, but "
        "{} micro-batches{} make a step, on all ranks together; correct it, or "
        "write \"auto\"",
        *total,
        batches_per_step,
        micro ? format(" of {}", *micro) : std::string()));
  }
  return micro_of_total;
}

}  // namespace

std::string fill_batch_sizes(
    const std::string& text,
    const DeepSpeedBatches& batches) {
  Json config = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return text;
  const std::int64_t batches_per_step =
      batches.gradient_accumulation_steps * batches.num_ranks;
  std::optional<std::int64_t> micro =
      requested_micro_batch(config, batches_per_step);
  const auto& given = batches.micro_batches;
  if (micro && !given.empty() &&
      std::ranges::find(given, *micro) == given.end()) {
    std::vector<std::string> sizes;
    for (const std::int64_t size : given) sizes.push_back(format("{}", size));
    throw ConfigError(format(
        "[config] the DeepSpeed configuration requests micro-batches of {} on "
        "each rank, but the loaders passed to prepare() have {}; correct {}, "
        "or write \"auto\"",
        *micro,
        join(sizes, ", "),
        number_at(config, kMicro) ? kMicro : kTotal));
  }
  if (!micro && !given.empty()) micro = *std::ranges::min_element(given);
  fill(config, kSteps, batches.gradient_accumulation_steps);
  if (micro) {
    if (*micro > std::numeric_limits<std::int64_t>::max() / batches_per_step) {
      throw ConfigError(format(
          "[config] {} of the DeepSpeed configuration is {}, but {} "
          "micro-batches make a step: more samples than can be counted; make "
          "it smaller",
          kMicro,
          *micro,
          batches_per_step));
    }
    fill(config, kMicro, *micro);
    fill(config, kTotal, *micro * batches_per_step);
  }
  return config.dump();
}

}  // namespace accelerate::detail
