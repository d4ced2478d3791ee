#include "cli/commands/weights_command.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include <accelerate/error.h>

#include "base/file_system.h"
#include "base/sizes.h"
#include "base/text.h"
#include "format/tensors/weights.h"
#include "format/torch/torch_distributed.h"

namespace accelerate::cli {

namespace {

namespace fs = std::filesystem;
using detail::format;

std::string shown(const fs::path& path) {
  return detail::printable(path.string(), std::string::npos);
}

struct MergeFlags {
  std::string checkpoint_dir;
  std::string output;
  bool is_unsafe = false;
  bool removes = false;
};

// Throws unless the directory holds a sharded checkpoint. As in Accelerate, the
// error names directories inside that do.
void require_sharded(const fs::path& directory) {
  if (!fs::is_directory(directory)) {
    throw ConfigError(format("{} is not a directory", directory.string()));
  }
  if (detail::is_torch_distributed(directory) ||
      fs::exists(directory / detail::kManifestName)) {
    return;
  }
  std::string hint;
  for (const char* inside : {"pytorch_model_fsdp_0", "optimizer_0"}) {
    if (detail::is_torch_distributed(directory / inside)) {
      hint += format(
          "{}{}", hint.empty() ? "" : " or ", (directory / inside).string());
    }
  }
  throw ConfigError(format(
      "{} does not hold a sharded checkpoint: it has neither .metadata nor "
      "manifest.json{}",
      directory.string(),
      hint.empty() ? "" : format("; did you mean {}?", hint)));
}

// The path without links, ".", ".." and a slash at the end, as far as it exists.
fs::path resolved(const fs::path& path) {
  std::error_code code;
  const fs::path real = fs::weakly_canonical(path, code);
  if (code) {
    throw Error(
        format("[files] cannot resolve {}: {}", path.string(), code.message()));
  }
  return real.has_filename() ? real : real.parent_path();
}

// True for the directory itself, too.
bool is_inside(const fs::path& path, const fs::path& directory) {
  const fs::path inner = resolved(path);
  const fs::path outer = resolved(directory);
  const auto [rest, end] =
      std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return rest == outer.end();
}

void remove_directory(const fs::path& directory) {
  std::error_code code;
  fs::remove_all(directory, code);
  if (code) {
    throw Error(format(
        "[files] cannot remove {}: {}", directory.string(), code.message()));
  }
}

int merge(const MergeFlags& flags) {
  const fs::path directory = flags.checkpoint_dir;
  require_sharded(directory);
  if (flags.removes && is_inside(flags.output, directory)) {
    throw ConfigError(format(
        "the output {} is inside the checkpoint {}, which "
        "--remove_checkpoint_dir deletes; name a directory outside it",
        flags.output,
        directory.string()));
  }
  const auto disk = detail::make_file_system();
  detail::WriteModelOptions options;
  options.format = flags.is_unsafe ? detail::ModelFormat::torch
                                   : detail::ModelFormat::safetensors;
  // As in Accelerate, writes one file of any size.
  options.max_shard_bytes = ~std::uint64_t{0} >> 1U;
  const detail::StoredTensors tensors = detail::open_weights(directory);
  detail::write_model(
      *disk, flags.output, detail::named_tensors(tensors), options);
  std::printf(
      "%zu tensors of %s merged into %s\n",
      tensors.size(),
      shown(directory).c_str(),
      shown(flags.output).c_str());
  if (flags.removes) {
    remove_directory(directory);
    std::printf("%s removed\n", shown(directory).c_str());
  }
  return 0;
}

struct ConvertFlags {
  std::string input;
  std::string output;
  std::string max_shard_size = "10GB";
};

int convert(const ConvertFlags& flags) {
  const fs::path output = flags.output;
  const auto disk = detail::make_file_system();
  const detail::StoredTensors tensors = detail::open_weights(flags.input);
  const std::string ending = output.extension().string();
  if (ending == ".safetensors" || ending == ".bin" || ending == ".pt" ||
      ending == ".pth") {
    detail::write_weights_file(*disk, output, tensors);
  } else if (ending.empty()) {
    detail::WriteModelOptions options;
    options.max_shard_bytes =
        static_cast<std::uint64_t>(detail::parse_size(flags.max_shard_size));
    detail::write_model(*disk, output, detail::named_tensors(tensors), options);
  } else {
    throw ConfigError(format(
        "{} has an unknown extension: end it with .safetensors, .bin, .pt or "
        ".pth, or name a directory",
        output.string()));
  }
  std::printf(
      "%zu tensors written to %s\n", tensors.size(), shown(output).c_str());
  return 0;
}

}  // namespace

std::function<int()> add_merge_weights_command(CLI::App& tool) {
  const auto flags = std::make_shared<MergeFlags>();
  CLI::App* const command = tool.add_subcommand(
      "merge-weights",
      "merge a sharded checkpoint (torch's or ours) into one file of weights");
  command
      ->add_option(
          "checkpoint_directory",
          flags->checkpoint_dir,
          "directory with .metadata and .distcp files, or a checkpoint")
      ->required();
  command
      ->add_option(
          "output_path", flags->output, "directory for the merged weights")
      ->required();
  command->add_flag(
      "--unsafe_serialization,--unsafe-serialization",
      flags->is_unsafe,
      "write pytorch_model.bin in place of model.safetensors");
  command->add_flag(
      "--remove_checkpoint_dir,--remove-checkpoint-dir",
      flags->removes,
      "delete the sharded checkpoint afterwards");
  return [=] { return merge(*flags); };
}

std::function<int()> add_convert_command(CLI::App& tool) {
  const auto flags = std::make_shared<ConvertFlags>();
  CLI::App* const command = tool.add_subcommand(
      "convert", "convert files of weights to another format");
  command
      ->add_option(
          "input",
          flags->input,
          "a file of safetensors or torch.save, an index, or a directory")
      ->required();
  command
      ->add_option(
          "output",
          flags->output,
          "a file ending in .safetensors, .bin, .pt or .pth, or a directory")
      ->required();
  command
      ->add_option(
          "--max_shard_size,--max-shard-size",
          flags->max_shard_size,
          "maximum size of each file if the output is a directory")
      ->capture_default_str();
  return [=] { return convert(*flags); };
}

}  // namespace accelerate::cli
