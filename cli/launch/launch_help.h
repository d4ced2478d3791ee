#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace accelerate::cli {

/// The help of `launch`. As with Accelerate, --help beside a flag that chooses
/// how to train, such as --multi_gpu or --use_fsdp, leaves out the flags of
/// engines that were not chosen, and says so.
class LaunchHelp final : public CLI::Formatter {
 public:
  std::string make_help(
      const CLI::App* app,
      std::string name,
      CLI::AppFormatMode mode) const override;
  std::string make_group(
      std::string group,
      bool is_positional,
      std::vector<const CLI::Option*> options) const override;

 private:
  // The groups that the help in progress leaves out.
  mutable std::vector<std::string> left_out_;
};

}  // namespace accelerate::cli
