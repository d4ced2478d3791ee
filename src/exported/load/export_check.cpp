#include "exported/load/export_check.h"

#include <torch/nn/module.h>

#include <accelerate/error.h>
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
          "{} was not exported by accelerate_cpp_export.py, so its gradients "
          "have not been compared with Python's, its autocast is unknown, and "
          "eval() changes only dropout and normalisation",
          name));
    } else if (program->autocast_dtype() != autocast) {
      warnings.push_back(format(
          "{} was exported {} but runs {}: its own code keeps the casts of the "
          "export; export it as it is to be trained (export_for_cpp(..., "
          "autocast=))",
          name,
          autocast_text(program->autocast_dtype()),
          autocast_text(autocast)));
    }
  }
  return warnings;
}

void require_dtypes_of_export(
    const torch::nn::Module& module,
    at::ScalarType dtype) {
  for (const auto& child : module.named_modules()) {
    if (dynamic_cast<const ExportedModuleImpl*>(child.value().get()) == nullptr)
      continue;
    for (const auto& item : child.value()->named_parameters(false)) {
      const at::ScalarType exported = item.value().scalar_type();
      if (!at::isFloatingType(exported) || exported == dtype) continue;
      throw ConfigError(format(
          "[exported] the param_dtype of the mixed_precision_policy must be "
          "{}, in which '{}' of {} was exported, but is {} without autocast: "
          "export with export_for_cpp(..., autocast=) and set the "
          "Accelerator's mixed_precision, convert the model in Python before "
          "the export, or leave param_dtype out",
          c10::toString(exported),
          printable(child.key() + "." + item.key()),
          printable(child.value()->name()),
          c10::toString(dtype)));
    }
  }
}

}  // namespace accelerate::detail
