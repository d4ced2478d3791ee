#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include <accelerate/error.h>
#include <accelerate/planning.h>

#include "base/files/files.h"
#include "base/text/sizes.h"
#include "base/text/text.h"
#include "cli/launch/decision/launch_flags.h"
#include "cli/tool/commands.h"
#include "config/environment.h"
#include "config/files/config_file.h"

namespace accelerate::cli {

namespace {

using Units = std::initializer_list<std::pair<std::string_view, double>>;

[[noreturn]] void refuse(
    const std::string& flag,
    const std::string& text,
    std::string_view wanted) {
  throw ConfigError(detail::format(
      "[cli] {} is \"{}\", but must be {}",
      flag,
      detail::printable(text),
      wanted));
}

// A number above 0 followed by one of the units, in any case.
std::optional<double> parse(const std::string& text, Units units) {
  const std::string lower = detail::to_lower(detail::trim(text));
  for (const auto& [unit, factor] : units) {
    if (!lower.ends_with(unit)) continue;
    const std::string_view digits = detail::trim(
        std::string_view(lower).substr(0, lower.size() - unit.size()));
    const std::optional<double> number = detail::parse_double(digits);
    if (number && std::isfinite(*number) && *number > 0)
      return *number * factor;
  }
  return std::nullopt;
}

// "400TF", "1.2 PFLOPS", "4e14": operations per second. Throws ConfigError for
// other text. `flag` is named in errors.
double parse_flops(const std::string& flag, const std::string& text) {
  const auto flops = parse(
      text,
      {{"gf", 1e9},
       {"tf", 1e12},
       {"pf", 1e15},
       {"gflops", 1e9},
       {"tflops", 1e12},
       {"pflops", 1e15},
       {"", 1}});
  if (!flops) refuse(flag, text, "operations per second, such as 400TF");
  return *flops;
}

// "400Gb/s" (bits), "50GB/s": bytes per second.
double parse_rate(const std::string& flag, const std::string& text) {
  std::string_view size = detail::trim(text);
  if (size.ends_with("/s")) size.remove_suffix(2);
  try {
    const std::int64_t bytes = detail::parse_size(size);
    if (bytes > 0) return static_cast<double>(bytes);
  } catch (const ConfigError&) {
    // Reported below, with the flag.
  }
  refuse(flag, text, "a speed, such as 400Gb/s (bits) or 50GB/s (bytes)");
}

// "8us", "1.5ms", "2e-6": seconds.
double parse_seconds(const std::string& flag, const std::string& text) {
  const auto seconds = parse(
      text, {{"us", 1e-6}, {"ms", 1e-3}, {"ns", 1e-9}, {"s", 1}, {"", 1}});
  if (!seconds) refuse(flag, text, "a time, such as 8us");
  return *seconds;
}

// "4M", "512K", "4194304": a count, where K is 1024 and M its square.
std::int64_t parse_count(const std::string& flag, const std::string& text) {
  const auto count = parse(
      text,
      {{"k", 1024.0},
       {"m", 1024.0 * 1024},
       {"g", 1024.0 * 1024 * 1024},
       {"", 1}});
  if (!count || *count < 1 || *count > 0x1p52)
    refuse(flag, text, "a number of at least 1, such as 4M (4 x 1024 x 1024)");
  return std::llround(*count);
}

namespace fs = std::filesystem;

struct PlanFlags {
  std::string model;
  int ranks = 1;
  int ranks_per_node = 8;
  std::string memory = "80GB";
  std::string sequence = "2048";
  std::string batch = "1M";
  std::string precision = "bf16";
  std::string optimizer = "adamw";
  std::string compute = "400TF";
  std::string memory_bandwidth = "2.5TB/s";
  std::string link = "400Gb/s";
  std::string link_latency;
  std::string node_link = "300GB/s";
  std::string node_link_latency;
  std::string operator_time = "4us";
  std::string disk_speed;
  std::string offload_directory = "/nvme";
  std::string on_disk;
  std::optional<int> replicate, shard, expert, context, tensor, pipeline;
  std::string sharding;
  std::string recompute;
  double expert_imbalance = 1.1;
  std::size_t top = 8;
  bool prints_scaling = false;
  std::vector<int> scaling_ranks;
  bool applies = false;
  std::string config_file;
};

// parse_size() does not support terabytes.
double rate_of(const std::string& flag, const std::string& text) {
  const std::size_t unit = text.find("TB");
  if (unit == std::string::npos) return parse_rate(flag, text);
  return 1000 *
      parse_rate(flag, text.substr(0, unit) + "GB" + text.substr(unit + 2));
}

// The link that `text` names, or of that speed; `latency`, if given, replaces
// the one it has otherwise.
LinkSpeed link_of(
    const std::string& flag,
    const std::string& text,
    const std::string& latency,
    double usual_latency) {
  LinkSpeed link{usual_latency, 0};
  try {
    link = link_named(detail::to_lower(text));
  } catch (const ConfigError&) {
    link.bytes_per_second = rate_of(flag, text);
  }
  if (!latency.empty())
    link.latency_seconds = parse_seconds(flag + "_latency", latency);
  return link;
}

FloatType precision_of(const std::string& name) {
  if (name == "no") return FloatType::fp32;
  return name == "fp16" ? FloatType::fp16 : FloatType::bf16;
}

std::optional<LayoutSharding> sharding_of(const std::string& name) {
  if (name == "none") return LayoutSharding::none;
  if (name == "zero1") return LayoutSharding::optimizer;
  if (name == "zero2") return LayoutSharding::gradients;
  if (name == "parameters") return LayoutSharding::parameters;
  return std::nullopt;
}

LayoutPlanOptions options_of(const PlanFlags& flags) {
  LayoutPlanOptions options;
  options.num_ranks = flags.ranks;
  options.sequence_length = parse_count("--sequence", flags.sequence);
  options.batch_tokens = parse_count("--batch", flags.batch);
  options.precision = precision_of(flags.precision);
  options.optimizer = flags.optimizer;
  options.expert_imbalance = flags.expert_imbalance;
  ClusterSpeeds& cluster = options.cluster.emplace();
  cluster.ranks_per_node = flags.ranks_per_node;
  cluster.memory_bytes =
      static_cast<std::uint64_t>(detail::parse_size(flags.memory));
  cluster.flops = parse_flops("--compute", flags.compute);
  cluster.memory_bytes_per_second =
      rate_of("--memory_bandwidth", flags.memory_bandwidth);
  cluster.between_nodes =
      link_of("--link", flags.link, flags.link_latency, 8e-6);
  cluster.inside_node =
      link_of("--node_link", flags.node_link, flags.node_link_latency, 3e-6);
  cluster.seconds_per_operator =
      parse_seconds("--operator_time", flags.operator_time);
  if (!flags.disk_speed.empty())
    cluster.disk_bytes_per_second = rate_of("--disk_speed", flags.disk_speed);
  options.offload_directory = flags.offload_directory;
  options.replicate = flags.replicate;
  options.shard = flags.shard;
  options.expert = flags.expert;
  options.context = flags.context;
  options.tensor = flags.tensor;
  options.pipeline = flags.pipeline;
  options.sharding = sharding_of(flags.sharding);
  if (!flags.recompute.empty()) options.recomputes = flags.recompute == "yes";
  if (!flags.on_disk.empty()) options.on_disk = flags.on_disk == "yes";
  return options;
}

fs::path config_file_of(const std::string& named) {
  if (!named.empty()) return named;
  const auto usual =
      detail::default_config_path(detail::Environment::current());
  if (usual) return *usual;
  throw ConfigError(
      "[config] none of HF_HOME, XDG_CACHE_HOME and HOME is set; pass "
      "--config_file");
}

int run_plan(const PlanFlags& flags) {
  const TransformerShape shape = read_transformer_shape(flags.model);
  const LayoutPlanOptions options = options_of(flags);
  if (flags.prints_scaling) {
    std::vector<int> ranks = flags.scaling_ranks;
    for (int count = 8; flags.scaling_ranks.empty() && count <= 16'384;
         count *= 2)
      ranks.push_back(count);
    std::fputs(scaling_table(shape, options, ranks).c_str(), stdout);
    return 0;
  }
  const LayoutPlan plan = plan_layout(shape, options);
  std::fputs(plan.explain(flags.top).c_str(), stdout);
  if (plan.layouts().empty()) return 1;
  if (!flags.applies) return 0;
  const fs::path file = config_file_of(flags.config_file);
  detail::replace_file(file, plan.config_text());
  std::printf("\nWritten to %s:\n\n", file.c_str());
  std::fputs(plan.config_text().c_str(), stdout);
  return 0;
}

void add_cluster_options(CLI::App& command, PlanFlags& flags) {
  const auto option = [&](const char* name, auto& value, const char* help) {
    return command.add_option(both_spellings(name), value, help);
  };
  option("--ranks_per_node", flags.ranks_per_node, "ranks on one node [8]")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  option("--memory", flags.memory, "memory of a rank [80GB]")
      ->type_name("SIZE");
  option(
      "--compute",
      flags.compute,
      "operations per second that products of 16 bits reach on a rank [400TF]")
      ->type_name("FLOPS");
  option("--memory_bandwidth", flags.memory_bandwidth, "of a rank [2.5TB/s]")
      ->type_name("RATE");
  option(
      "--link",
      flags.link,
      "of a rank to other nodes: a speed, or hdr, ndr or xdr [400Gb/s]")
      ->type_name("RATE");
  option(
      "--link_latency",
      flags.link_latency,
      "of that link [8us, or as it is named]")
      ->type_name("TIME");
  option(
      "--node_link",
      flags.node_link,
      "of a rank within its node: a speed, or nvlink3, nvlink4, nvlink5, pcie4 "
      "or pcie5 [300GB/s]")
      ->type_name("RATE");
  option(
      "--node_link_latency",
      flags.node_link_latency,
      "of that link [3us, or as it is named]")
      ->type_name("TIME");
  option(
      "--operator_time",
      flags.operator_time,
      "what an operator costs besides its work [4us]")
      ->type_name("TIME");
  option(
      "--disk_speed",
      flags.disk_speed,
      "bytes per second that the disk of a node reads or writes, 3GB/s: also "
      "consider shards, gradients and optimizer state in files [no disk]")
      ->type_name("RATE");
  option(
      "--offload_directory",
      flags.offload_directory,
      "the directory on that disk that --apply writes [/nvme]")
      ->type_name("DIR");
}

void add_choices(CLI::App& command, PlanFlags& flags) {
  const auto degree = [&](const char* name, std::optional<int>& value) {
    command.add_option(name, value, "this degree and no other")
        ->type_name("N")
        ->check(CLI::PositiveNumber);
  };
  degree("--replicate", flags.replicate);
  degree("--shard", flags.shard);
  degree("--expert", flags.expert);
  degree("--context", flags.context);
  degree("--tensor", flags.tensor);
  degree("--pipeline", flags.pipeline);
  command
      .add_option(
          "--sharding", flags.sharding, "none, zero1, zero2 or parameters")
      ->type_name("WORD")
      ->check(CLI::IsMember({"none", "zero1", "zero2", "parameters"}));
  command.add_option("--recompute", flags.recompute, "activations: yes or no")
      ->type_name("WORD")
      ->check(CLI::IsMember({"yes", "no"}));
  command
      .add_option(
          both_spellings("--on_disk"),
          flags.on_disk,
          "shards in files, with --disk_speed: yes or no")
      ->type_name("WORD")
      ->check(CLI::IsMember({"yes", "no"}));
  command
      .add_option(
          both_spellings("--expert_imbalance"),
          flags.expert_imbalance,
          "load of the busiest experts over the mean [1.1]")
      ->type_name("X");
}

}  // namespace

RunCommand add_plan_command(CLI::App& tool) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* const command = tool.add_subcommand(
      "plan", "choose how a training is divided among ranks, by simulation");
  const auto option = [&](const char* name, auto& value, const char* help) {
    return command->add_option(both_spellings(name), value, help);
  };
  command
      ->add_option(
          "model",
          flags->model,
          "config.json of a transformer, or its directory")
      ->required();
  option("--ranks", flags->ranks, "number of ranks [1]")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20));
  option("--sequence", flags->sequence, "tokens per sample [2048]")
      ->type_name("N");
  option("--batch", flags->batch, "tokens per step, 4M is 4 x 1024 x 1024 [1M]")
      ->type_name("N");
  option("--mixed_precision", flags->precision, "no, fp16 or bf16 [bf16]")
      ->type_name("WORD")
      ->check(CLI::IsMember({"no", "fp16", "bf16"}));
  option(
      "--optimizer",
      flags->optimizer,
      "adamw, adam, momentum, adagrad, sgd or lomo [adamw]")
      ->type_name("WORD");
  add_cluster_options(*command, *flags);
  add_choices(*command, *flags);
  option("--top", flags->top, "number of other layouts to show [8]")
      ->type_name("N");
  CLI::Option* const scaling = command->add_flag(
      "--scaling",
      flags->prints_scaling,
      "a page of figures for 8 to 16384 ranks");
  option(
      "--scaling_ranks",
      flags->scaling_ranks,
      "these numbers of ranks instead, such as 8,64,512")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20))
      ->needs(scaling);
  CLI::Option* const apply = command->add_flag(
      "--apply", flags->applies, "write the best layout to the config file");
  apply->excludes(scaling);
  option(
      "--config_file",
      flags->config_file,
      "file that --apply writes [that of `accelerate-cpp config`]")
      ->type_name("FILE")
      ->needs(apply);
  return [flags] { return run_plan(*flags); };
}

}  // namespace accelerate::cli
