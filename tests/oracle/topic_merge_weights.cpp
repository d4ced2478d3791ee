#include <algorithm>
#include <filesystem>

#include "base/files/file_system.h"
#include "format/torch/torch_distributed.h"
#include "format/weights/weights.h"
#include "oracle/files.h"
#include "support/temporary_directory.h"

namespace accelerate::oracle {

namespace fs = std::filesystem;

Json run_merge_weights(const Json& input) {
  const fs::path directory = input.at("path").get<std::string>();
  std::vector<std::string> sharded;
  for (const auto& entry : fs::directory_iterator(directory)) {
    sharded.push_back(entry.path().filename().string());
  }
  std::sort(sharded.begin(), sharded.end());
  const testing::TemporaryDirectory output;
  detail::WriteModelOptions options;
  options.format = input.at("safe_serialization")
      ? detail::ModelFormat::safetensors
      : detail::ModelFormat::torch;
  const auto disk = detail::make_file_system();
  detail::write_model(
      *disk,
      output.path(),
      detail::named_tensors(detail::open_weights(directory)),
      options);
  return {{"sharded_files", sharded}, {"files", describe_files(output.path())}};
}

}  // namespace accelerate::oracle
