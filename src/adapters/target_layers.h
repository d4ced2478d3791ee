#pragma once

#include <vector>

#include <accelerate/adapters.h>

#include "adapters/adapter_tree.h"
#include "adapters/layer_kind.h"

namespace accelerate::detail {

/// A layer that is to have an adapter.
struct TargetLayer {
  NamedModule module;
  LayerFacts facts;
};

struct Targets {
  std::vector<TargetLayer> layers;
  /// Modules of `modules_to_save`, outermost only.
  std::vector<NamedModule> saved;
};

/// Throws ConfigError with all complaints about the options.
void require_valid(const AdapterOptions& options);

/// Chooses the modules that the options select. Throws ConfigError if there is
/// no layer, or for layers that cannot have an adapter.
Targets find_targets(torch::nn::Module& model, const AdapterOptions& options);

}  // namespace accelerate::detail
