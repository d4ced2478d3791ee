#include "exported/export_check.h"

#include <torch/nn/module.h>

#include <accelerate/exported_model.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

std::string autocast_text(std::optional<at::ScalarType> dtype) {
  return dtype ? format("under autocast in {}", c10::toString(*dtype))
               : std::string("without autocast");
}

}  // namespace

std::vector<std::string> export_warnings(
    const torch::nn::Module& module,
    std::optional<at::ScalarType> autocast) {
  std::vector<std::string> warnings;
  for (const auto& child : module.modules()) {
    const auto* const program =
        dynamic_cast<const ExportedModelImpl*>(child.get());
    if (program == nullptr) continue;
    const std::string name = printable(program->name());
    if (!program->is_described()) {
      warnings.push_back(format(
          "{} was not exported by accelerate_cpp_export.py, so nobody has "
          "compared its gradients with Python's, or knows its autocast, and "
          "eval() changes only dropout and normalisation",
          name));
    } else if (program->autocast_dtype() != autocast) {
      warnings.push_back(format(
          "{} was exported {} but runs {}: the casts in its own code are those "
          "of the export; export it as it is to be trained "
          "(export_for_cpp(..., autocast=))",
          name,
          autocast_text(program->autocast_dtype()),
          autocast_text(autocast)));
    }
  }
  return warnings;
}

}  // namespace accelerate::detail
