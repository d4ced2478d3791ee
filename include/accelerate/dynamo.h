#pragma once

#include <optional>
#include <string>

namespace accelerate {

/// What `torch.compile` does with a model, as Accelerate's TorchDynamoPlugin
/// spells it. TorchDynamo traces Python code, so these options have no effect
/// on modules in C++: they are checked, and reported if they ask for anything.
/// A field left unset takes the launcher's value (`--dynamo_*`,
/// `ACCELERATE_DYNAMO_*`), else the default named below.
struct TorchDynamoOptions {
  /// A backend of Accelerate's list, in upper or lower case: "inductor",
  /// "eager", "cudagraphs" ... "no" compiles nothing. Unset: "no".
  std::optional<std::string> backend = std::nullopt;
  /// "default", "reduce-overhead" or "max-autotune". Unset: "default".
  std::optional<std::string> mode = std::nullopt;
  /// Compile the model as a whole, or fail. Unset: false.
  std::optional<bool> fullgraph = std::nullopt;
  /// Shapes can change. Unset: TorchDynamo decides.
  std::optional<bool> dynamic = std::nullopt;
  /// Compile nothing, for tests.
  bool disable = false;
  /// Compile repeated blocks once. Unset: false.
  std::optional<bool> use_regional_compilation = std::nullopt;
};

}  // namespace accelerate
