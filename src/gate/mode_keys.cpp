#include "gate/mode_keys.h"

#include <memory>

#include <torch/library.h>

namespace accelerate::detail {

// A process can have only one fallback per dispatch key.
void register_replacing_key() {
  static const auto library = [] {
    auto made = std::make_unique<torch::Library>(
        torch::Library::IMPL, "_", kReplacingKey, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFallthrough());
    return made;
  }();
}

}  // namespace accelerate::detail
