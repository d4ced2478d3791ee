#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include <CLI/CLI.hpp>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/progress/byte_progress.h"
#include "base/text/sizes.h"
#include "base/text/text.h"
#include "cli/tool/commands.h"
#include "format/weights/merge_weights.h"
#include "format/weights/weights.h"

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

int merge(const MergeFlags& flags) {
  const std::size_t num_tensors = detail::merge_weights(
      {.checkpoint_dir = flags.checkpoint_dir,
       .output = flags.output,
       .format = flags.is_unsafe ? detail::ModelFormat::torch
                                 : detail::ModelFormat::safetensors,
       .removes_checkpoint = flags.removes,
       .make_disk = [](std::uint64_t num_bytes) {
         return detail::make_file_system_with_progress("merging", num_bytes);
       }});
  std::printf(
      "%zu tensors of %s merged into %s\n",
      num_tensors,
      shown(flags.checkpoint_dir).c_str(),
      shown(flags.output).c_str());
  if (flags.removes) {
    std::printf("%s removed\n", shown(flags.checkpoint_dir).c_str());
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
  const detail::StoredTensors tensors =
      detail::open_weights(flags.input, {}, [](const std::string& name) {
        std::fprintf(
            stderr,
            "warning: \"%s\" is a numpy array, which is left out\n",
            detail::printable(name).c_str());
      });
  const auto named = detail::named_tensors(tensors);
  auto disk = detail::make_file_system_with_progress(
      "writing", detail::num_bytes_of(named));
  const std::string ending = output.extension().string();
  if (ending == ".safetensors" || ending == ".bin" || ending == ".pt" ||
      ending == ".pth") {
    detail::write_weights_file(*disk, output, tensors);
  } else if (ending.empty()) {
    detail::WriteModelOptions options;
    options.max_shard_bytes =
        static_cast<std::uint64_t>(detail::parse_size(flags.max_shard_size));
    const fs::path input = flags.input;
    std::error_code code;
    options.has_same_weights = fs::equivalent(
        fs::is_directory(input) ? input : detail::directory_of(input),
        output,
        code);
    detail::write_model(*disk, output, named, options);
  } else {
    throw ConfigError(format(
        "{} has an unknown extension: end it with .safetensors, .bin, .pt or "
        ".pth, or name a directory",
        output.string()));
  }
  // Remove the bar before the message, so that it is not below it.
  disk.reset();
  std::printf(
      "%zu tensors written to %s\n", tensors.size(), shown(output).c_str());
  return 0;
}

}  // namespace

RunCommand add_merge_weights_command(CLI::App& tool) {
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

RunCommand add_convert_command(CLI::App& tool) {
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
