#include "engines/parallelism.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

class ParallelismResolution {
 public:
  ParallelismResolution(
      const ParallelismConfig& given,
      const Settings& settings)
      : config_(given), settings_(settings) {}

  ParallelismConfig run() {
    take_degree(config_.dp_replicate_size, "dp_replicate_size");
    take_degree(config_.dp_shard_size, "dp_shard_size");
    take_degree(config_.tp_size, "tp_size");
    take_degree(config_.cp_size, "cp_size");
    take_degree(config_.sp_size, "sp_size");
    take_name(config_.cp_backend, "cp_backend");
    take_name(config_.sp_backend, "sp_backend");
    require_name("cp_backend", *config_.cp_backend, {"torch"});
    require_name("sp_backend", *config_.sp_backend, {"deepspeed"});
    if (*config_.cp_size > 1 || config_.cp_comm_strategy) {
      take_name(config_.cp_comm_strategy, "cp_comm_strategy");
      require_name(
          "cp_comm_strategy",
          *config_.cp_comm_strategy,
          {"allgather", "alltoall"});
    }
    if (*config_.sp_size > 1) choose_sequences();
    check_together();
    if (!complaints_.empty()) throw ConfigError(join(complaints_, "\n"));
    return config_;
  }

 private:
  void take_degree(std::optional<int>& field, std::string_view name) {
    const std::string key = format("parallelism_config_{}", name);
    if (!field) field = static_cast<int>(settings_.integer(key).value_or(1));
    if (*field >= 1) return;
    complaints_.push_back(
        format("[config] {} must be at least 1, but is {}", name, *field));
  }

  void take_name(std::optional<std::string>& field, std::string_view name)
      const {
    if (!field) field = settings_.text(format("parallelism_config_{}", name));
  }

  void require_name(
      std::string_view name,
      const std::string& value,
      const std::vector<std::string>& allowed) {
    if (std::ranges::find(allowed, value) != allowed.end()) return;
    complaints_.push_back(format(
        "[config] {} is \"{}\", but must be {}",
        name,
        value,
        join(allowed, " or ")));
  }

  void choose_sequences() {
    const auto is_given = [&](std::string_view name) {
      return settings_.is_given(format("parallelism_config_{}", name));
    };
    if (!config_.sp_seq_length_is_variable) {
      config_.sp_seq_length_is_variable =
          settings_.boolean("parallelism_config_sp_seq_length_is_variable");
    }
    // The length is only read if all sequences have one length, as in
    // Accelerate.
    if (!*config_.sp_seq_length_is_variable && !config_.sp_seq_length &&
        is_given("sp_seq_length")) {
      const auto text = *settings_.text("parallelism_config_sp_seq_length");
      const auto length = parse_int(text);
      if (length) config_.sp_seq_length = static_cast<int>(*length);
      if (!length && text != "None") {
        complaints_.push_back(format(
            "[config] sp_seq_length must be a number, but is \"{}\"", text));
      }
    }
    if (!*config_.sp_seq_length_is_variable && !config_.sp_seq_length) {
      complaints_.emplace_back(
          "[config] sp_seq_length_is_variable is false, so sp_seq_length must "
          "be set to the length of sequences");
    }
    if (is_given("sp_attn_implementation")) {
      require_attention(
          *settings_.text("parallelism_config_sp_attn_implementation"));
    }
  }

  void require_attention(const std::string& name) {
    const bool is_hub_kernel = name.find('/') != std::string::npos &&
        name.find("flash-attn") != std::string::npos;
    if (is_hub_kernel || name == "sdpa" || name == "flash_attention_2" ||
        name == "flash_attention_3") {
      return;
    }
    complaints_.push_back(format(
        "[config] sp_attn_implementation is \"{}\", but must be sdpa, "
        "flash_attention_2, flash_attention_3 or a kernel of Hugging Face's "
        "hub such as kernels-community/flash-attn2",
        name));
  }

  void check_together() {
    if (*config_.cp_size > 1 && *config_.sp_size > 1) {
      complaints_.push_back(format(
          "[config] cp_size is {} and sp_size is {}, but a sequence can only "
          "be sharded in one way; set one of them to 1",
          *config_.cp_size,
          *config_.sp_size));
    }
  }

  ParallelismConfig config_;
  const Settings& settings_;
  std::vector<std::string> complaints_;
};

}  // namespace

ParallelismConfig resolve_parallelism(
    const ParallelismConfig& given,
    const Settings& settings) {
  return ParallelismResolution(given, settings).run();
}

}  // namespace accelerate::detail
