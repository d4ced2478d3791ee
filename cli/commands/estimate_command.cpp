#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <accelerate/memory_plan.h>
#include <accelerate/progress.h>

#include "base/text/sizes.h"
#include "base/text/text.h"
#include "cli/launch/decision/launch_flags.h"
#include "cli/tool/commands.h"
#include "planning/memory_estimate.h"
#include "planning/model_tree.h"
#include "planning/training_memory.h"

namespace accelerate::cli {

namespace {

struct EstimateFlags {
  std::string model;
  std::vector<std::string> dtypes{"float32", "float16", "int8", "int4"};
  std::string library;
  bool trusts_code = false;
  std::string precision = "no";
  detail::TrainingPlan plan;
  /// Empty if --fits was not given.
  std::string fits;
  int num_gpus = 1;
  int gpus_per_node = 0;
  std::string on_disk = "none";
  /// Bytes per second; empty if not given.
  std::string disk_speed;
  bool names_precision = false;
  bool names_shards = false;
};

void say(const char* name, std::uint64_t bytes, const char* remark = "") {
  std::printf(
      "  %-22s %12s%s\n",
      name,
      detail::format_size(static_cast<double>(bytes)).c_str(),
      remark);
}

// Prints what a step reads and writes, and how long the disk takes for it.
void print_disk(
    const EstimateFlags& flags,
    const detail::ModelTree& model,
    const detail::TrainingMemory& memory) {
  const detail::DiskTraffic traffic = detail::disk_traffic(model, flags.plan);
  say("on disk", memory.on_disk);
  say("read in a step", traffic.read);
  say("written in a step", traffic.written);
  if (flags.disk_speed.empty()) return;
  const double seconds = (static_cast<double>(traffic.read) +
                          static_cast<double>(traffic.written)) /
      static_cast<double>(detail::parse_size(flags.disk_speed));
  std::printf("  %-22s %10.3g s\n", "the disk takes", seconds);
}

// Prints what fits into the memory of one device. Returns 1 if nothing does.
int print_fits(
    const EstimateFlags& flags,
    const detail::ModelTree& model,
    std::uint64_t largest_layer) {
  MemoryPlan::Facts facts{
      .num_ranks = flags.num_gpus,
      .num_local_ranks =
          flags.gpus_per_node > 0 ? flags.gpus_per_node : flags.num_gpus,
      .tensor = static_cast<int>(flags.plan.tensor),
      .context = static_cast<int>(flags.plan.context),
      .pipeline = static_cast<int>(flags.plan.pipeline)};
  if (flags.names_precision) {
    // Float8 is only for products; the rest of the forward is in bf16.
    facts.uses_fp8 = flags.precision == "fp8";
    facts.precisions = {
        flags.precision == "no"         ? FloatType::fp32
            : flags.precision == "fp16" ? FloatType::fp16
                                        : FloatType::bf16};
  }
  if (flags.names_shards)
    facts.num_shards = static_cast<int>(flags.plan.num_shards);
  if (flags.plan.recomputes_activations) facts.recomputes = true;
  const MemoryPlan plan = detail::plan_transformer(
      model, largest_layer, flags.plan, std::move(facts));
  const auto limit = static_cast<std::uint64_t>(detail::parse_size(flags.fits));
  std::printf(
      "\nTraining with %s, %lld samples of %lld tokens per device and step, "
      "%d devices of %s:\n",
      flags.plan.optimizer.c_str(),
      static_cast<long long>(flags.plan.batch_size),
      static_cast<long long>(flags.plan.sequence_length),
      flags.num_gpus,
      detail::format_size(static_cast<double>(limit)).c_str());
  std::fputs(plan.explain_fits(limit).c_str(), stdout);
  return plan.fits(limit).empty() ? 1 : 0;
}

// Shows a bar of the files, if the model is in several.
detail::ModelTree read_model(const std::filesystem::path& path) {
  std::optional<Progress> bar;
  return detail::read_model_tree(
      path, [&](std::size_t num_open, std::size_t num_files) {
        if (num_open > 0) {
          bar->update();
        } else {
          bar.emplace(ProgressOptions{
              .description = "reading",
              .total = static_cast<std::int64_t>(num_files),
              .unit = "file",
              .leave = false});
        }
      });
}

int estimate(EstimateFlags& flags) {
  const detail::ModelTree model = read_model(flags.model);
  const auto total = detail::total_bytes(model.root);
  flags.plan.optimizer_is_on_disk =
      flags.on_disk == "optimizer" || flags.on_disk == "all";
  flags.plan.weights_are_on_disk =
      flags.on_disk == "parameters" || flags.on_disk == "all";
  const auto largest = detail::largest_layers(model.root, model.no_split);
  std::vector<detail::MemoryEstimate> rows;
  for (const std::string& dtype : flags.dtypes) {
    rows.push_back(detail::estimate_memory(dtype, largest.num_bytes, total));
  }
  std::fputs(
      detail::memory_table(
          detail::printable(flags.model, std::string::npos), rows)
          .c_str(),
      stdout);
  if (!flags.fits.empty()) return print_fits(flags, model, largest.num_bytes);

  flags.plan.uses_fp8 = flags.precision == "fp8";
  flags.plan.uses_16_bits =
      flags.precision != "no" || flags.plan.weights_dtype != "float32";
  const detail::TrainingMemory memory =
      detail::training_memory(model, largest.num_bytes, flags.plan);
  std::printf(
      "\nTraining on one of %lld devices that share it, %s, weights %s, "
      "precision %s:\n",
      static_cast<long long>(flags.plan.num_shards),
      flags.plan.optimizer.c_str(),
      flags.plan.weights_dtype.c_str(),
      flags.precision.c_str());
  say("weights", memory.weights);
  if (memory.masters > 0) say("fp32 masters", memory.masters);
  say("gradients", memory.gradients);
  say("optimizer state", memory.optimizer);
  if (memory.gathered > 0) say("largest units, full", memory.gathered);
  if (memory.buffers > 0) say("buffers of the disk", memory.buffers);
  if (memory.activations) {
    say("activations", *memory.activations);
  } else {
    std::printf(
        "  %-22s %12s\n",
        "activations",
        model.transformer
            ? "give --sequence_length"
            : "not known: the model has no config.json of a transformer");
  }
  say("together", memory.total(), memory.activations ? "" : " and activations");
  if (memory.on_disk > 0) print_disk(flags, model, memory);
  return 0;
}

template <class Value>
CLI::Option* add_option(
    CLI::App& command,
    const char* name,
    Value& value,
    const char* help) {
  return command.add_option(both_spellings(name), value, help);
}

template <class Value>
void add_number(
    CLI::App& command,
    const char* name,
    Value& value,
    const char* help) {
  add_option(command, name, value, help)
      ->type_name("N")
      ->check(CLI::PositiveNumber);
}

void add_degree(
    CLI::App& command,
    const char* name,
    std::int64_t& degree,
    const char* help) {
  add_option(command, name, degree, help)
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20));
}

// Options for what is trained, and how.
void add_training_options(CLI::App& command, EstimateFlags& flags) {
  add_option(
      command,
      "--weights_dtype",
      flags.plan.weights_dtype,
      "dtype of the trained weights: float32, bfloat16 or float16 [float32]")
      ->type_name("WORD");
  add_option(
      command,
      "--mixed_precision",
      flags.precision,
      "precision of the forward pass [no]")
      ->type_name("WORD")
      ->check(CLI::IsMember({"no", "fp16", "bf16", "fp8"}));
  add_option(
      command,
      "--optimizer",
      flags.plan.optimizer,
      "adamw, adam, momentum, adagrad, sgd or lomo [adamw]")
      ->type_name("WORD");
  add_number(
      command, "--batch_size", flags.plan.batch_size, "samples per device [1]");
  add_number(
      command,
      "--sequence_length",
      flags.plan.sequence_length,
      "tokens per sample, to estimate activations");
  add_number(
      command,
      "--shards",
      flags.plan.num_shards,
      "devices that share weights, gradients and optimizer state [1]");
  add_degree(
      command,
      "--tensor",
      flags.plan.tensor,
      "devices that split each layer [1]");
  add_degree(
      command,
      "--context",
      flags.plan.context,
      "devices that divide sequences among them [1]");
  add_degree(
      command,
      "--pipeline",
      flags.plan.pipeline,
      "devices that divide the layers among them [1]");
}

void add_disk_options(CLI::App& command, EstimateFlags& flags) {
  add_option(
      command,
      "--on_disk",
      flags.on_disk,
      "what files keep: none, optimizer (with masters and gradients), "
      "parameters or all [none]")
      ->type_name("WORD")
      ->check(CLI::IsMember({"none", "optimizer", "parameters", "all"}));
  add_option(
      command,
      "--disk_speed",
      flags.disk_speed,
      "bytes that the disk reads and writes per second, 3GB, with --on_disk: "
      "print how long a step waits for it at least")
      ->type_name("SIZE");
}

void add_fit_options(CLI::App& command, EstimateFlags& flags) {
  add_option(
      command,
      "--fits",
      flags.fits,
      "memory of one device, 16GB: print what fits, cheapest first")
      ->type_name("SIZE");
  add_number(command, "--gpus", flags.num_gpus, "devices, with --fits [1]");
  add_number(
      command,
      "--gpus_per_node",
      flags.gpus_per_node,
      "devices on one node, with --fits [all]");
}

// Options of Accelerate's command, which downloads models and runs Python.
void add_ignored_options(CLI::App& command, EstimateFlags& flags) {
  add_option(
      command,
      "--library_name",
      flags.library,
      "Accelerate's; no effect: the model is read from its files");
  command.add_flag(
      both_spellings("--trust_remote_code"),
      flags.trusts_code,
      "Accelerate's; no effect: no code of a model is run");
}

}  // namespace

RunCommand add_estimate_command(CLI::App& tool) {
  auto flags = std::make_shared<EstimateFlags>();
  CLI::App* command = tool.add_subcommand(
      "estimate-memory",
      "estimate the memory for loading and training a model");
  command
      ->add_option(
          "model",
          flags->model,
          "directory, weights or config.json, on this machine")
      ->required();
  add_option(
      *command,
      "--dtypes",
      flags->dtypes,
      "float32, float16, bfloat16, int8, int4")
      ->type_name("WORD ...");
  add_training_options(*command, *flags);
  add_disk_options(*command, *flags);
  add_fit_options(*command, *flags);
  command->add_flag(
      both_spellings("--activation_checkpointing"),
      flags->plan.recomputes_activations,
      "recompute activations in the backward pass");
  add_ignored_options(*command, *flags);
  return [flags, command] {
    flags->names_precision = command->count("--mixed_precision") > 0;
    flags->names_shards = command->count("--shards") > 0;
    return estimate(*flags);
  };
}

}  // namespace accelerate::cli
