#include "engines/deepspeed/deepspeed_disk.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <accelerate/error.h>

#include "base/require.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using Json = nlohmann::json;

constexpr std::string_view kOptimizer = "zero_optimization.offload_optimizer.";
constexpr std::string_view kParameters = "zero_optimization.offload_param.";
constexpr std::string_view kPrefetchSize =
    "zero_optimization.stage3_prefetch_bucket_size";

std::string key(std::string_view section, std::string_view name) {
  return format("{}{}", section, name);
}

bool is_open(const Json* value) {
  return value == nullptr || value->is_null() || *value == "auto";
}

// Unset if the value is left to the library.
std::optional<std::int64_t> whole_number(
    const DeepSpeedConfig& config,
    const std::string& path,
    std::int64_t least) {
  // Numbers such as 1e8 are not integers in JSON. Beyond 2^53 they are not
  // exact either.
  constexpr auto kMost = std::int64_t{1} << 53;
  const Json* const value = config.find(path);
  if (is_open(value)) return std::nullopt;
  if (value->is_number()) {
    const auto number = value->get<double>();
    if (number >= static_cast<double>(least) &&
        number <= static_cast<double>(kMost) && std::floor(number) == number) {
      return static_cast<std::int64_t>(number);
    }
  }
  throw ConfigError(format(
      "[config] {} of the DeepSpeed configuration must be a whole number of at "
      "least {}, but is {}",
      path,
      least,
      printable(value->dump(-1, ' ', false, Json::error_handler_t::replace))));
}

bool is_on(const DeepSpeedConfig& config, const std::string& path) {
  const Json* const value = config.find(path);
  if (is_open(value)) return true;
  if (value->is_boolean()) return value->get<bool>();
  throw ConfigError(format(
      "[config] {} of the DeepSpeed configuration must be true or false, but "
      "is {}",
      path,
      printable(value->dump(-1, ' ', false, Json::error_handler_t::replace))));
}

std::string directory(
    std::string_view field,
    const std::optional<std::string>& path) {
  if (path && !path->empty() && *path != "none") return *path;
  throw ConfigError(format(
      "[config] {}_nvme_path must be a directory where {}_device is nvme, but "
      "is {}",
      field,
      field,
      path && !path->empty() ? *path : "empty"));
}

class DiskReading {
 public:
  explicit DiskReading(const DeepSpeedConfig& config)
      : config_(config), found_(config.options()) {}

  DiskRequest run() {
    const int stage = *found_.zero_stage;
    if (found_.offload_optimizer_device == "nvme") {
      attempt(complaints_, [&] { read_optimizer(stage); });
    }
    if (found_.offload_param_device == "nvme") {
      attempt(complaints_, [&] { read_parameters(stage); });
    }
    if (!complaints_.empty()) throw ConfigError(join(complaints_, "\n"));
    return std::move(request_);
  }

 private:
  void read_optimizer(int stage) {
    if (stage < 1) {
      throw ConfigError(
          "[config] offload_optimizer_device must be none where zero_stage is "
          "0, which shards nothing, but is nvme");
    }
    request_.keeps_optimizer_state = true;
    request_.directory =
        directory("offload_optimizer", found_.offload_optimizer_nvme_path);
    request_.overlaps_reads = is_on(config_, key(kOptimizer, "pipeline_read"));
    request_.overlaps_writes =
        is_on(config_, key(kOptimizer, "pipeline_write"));
    read_count(kOptimizer);
  }

  void read_parameters(int stage) {
    if (stage != 3) {
      throw ConfigError(format(
          "[config] offload_param_device must be none or cpu unless zero_stage "
          "is 3, but is nvme with zero_stage {}",
          stage));
    }
    request_.keeps_parameters = true;
    std::string path =
        directory("offload_param", found_.offload_param_nvme_path);
    if (request_.directory.empty()) {
      request_.directory = std::move(path);
    } else if (path != request_.directory) {
      request_.parameter_directory = std::move(path);
    }
    request_.buffer_elements =
        whole_number(config_, key(kParameters, "buffer_size"), 1).value_or(0);
    request_.elements_in_memory =
        whole_number(config_, key(kParameters, "max_in_cpu"), 0);
    request_.elements_ahead =
        whole_number(config_, std::string(kPrefetchSize), 0).value_or(0);
    read_count(kParameters);
  }

  // Both sections have a number of buffers, which are shared here.
  void read_count(std::string_view section) {
    const std::string path = key(section, "buffer_count");
    const std::int64_t count = whole_number(config_, path, 1).value_or(0);
    constexpr std::int64_t kMost = 1 << 20;
    if (count > kMost) {
      throw ConfigError(format(
          "[config] {} of the DeepSpeed configuration must be at most {}, but "
          "is {}",
          path,
          kMost,
          count));
    }
    request_.buffer_count =
        std::max(request_.buffer_count, static_cast<int>(count));
  }

  const DeepSpeedConfig& config_;
  const DeepSpeedFields& found_;
  DiskRequest request_;
  std::vector<std::string> complaints_;
};

}  // namespace

std::optional<DiskRequest> read_disk_request(const DeepSpeedConfig& config) {
  const DeepSpeedFields& found = config.options();
  if (found.offload_optimizer_device != "nvme" &&
      found.offload_param_device != "nvme") {
    return std::nullopt;
  }
  return DiskReading(config).run();
}

bool is_read_for_disk(const DeepSpeedFields& found, std::string_view path) {
  const auto is_in = [&](std::string_view section,
                         std::initializer_list<std::string_view> names) {
    return path.starts_with(section) &&
        std::ranges::find(names, path.substr(section.size())) != names.end();
  };
  if (found.offload_optimizer_device == "nvme" &&
      is_in(kOptimizer, {"buffer_count", "pipeline_read", "pipeline_write"})) {
    return true;
  }
  return found.offload_param_device == "nvme" &&
      (path == kPrefetchSize ||
       is_in(kParameters, {"buffer_count", "buffer_size", "max_in_cpu"}));
}

std::string without_effect_on_disk(std::string_view path) {
  if (path.starts_with("aio."))
    return "the library chooses how it reads and writes";
  const bool is_optimizer = path.starts_with(kOptimizer);
  if (!is_optimizer && !path.starts_with(kParameters)) return {};
  const std::string_view name =
      path.substr((is_optimizer ? kOptimizer : kParameters).size());
  struct Reason {
    std::string_view name;
    std::string_view why;
  };
  constexpr std::string_view kNotNvme = "only the device nvme has it";
  constexpr std::array<Reason, 9> kReasons{{
      {"pin_memory", "memory that devices copy from is pinned anyway"},
      {"pipeline", "pipeline_read and pipeline_write act"},
      {"fast_init", "the library chooses how files begin"},
      {"ratio", "the whole step of a shard is on one device"},
      {"buffer_count", kNotNvme},
      {"buffer_size", kNotNvme},
      {"max_in_cpu", kNotNvme},
      {"pipeline_read", kNotNvme},
      {"pipeline_write", kNotNvme},
  }};
  const auto reason = std::ranges::find(kReasons, name, &Reason::name);
  return reason == kReasons.end() ? std::string() : std::string(reason->why);
}

}  // namespace accelerate::detail
