#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/state_dict.h>

#include "checkpoint/contents.h"
#include "checkpoint/load/destinations.h"
#include "checkpoint/load/source.h"

namespace accelerate::detail {

/// Something that has a state. save_state() and load_state() are loops over one
/// list of components and know nothing else: a component in the list is saved,
/// checked and loaded. A component is made for one save or load, or registered
/// for all of them.
class CheckpointComponent {
 public:
  CheckpointComponent() = default;
  CheckpointComponent(const CheckpointComponent&) = delete;
  CheckpointComponent& operator=(const CheckpointComponent&) = delete;
  virtual ~CheckpointComponent() = default;

  /// Unique in a list, and the same in every version.
  [[nodiscard]] virtual std::string_view key() const = 0;
  /// Adds the state to what this rank writes. Tensors are shared, not copied.
  virtual void collect(CheckpointContents& contents) const = 0;
  /// Returns why the checkpoint does not fit; changes nothing that was
  /// prepared. By default, any checkpoint fits.
  [[nodiscard]] virtual std::vector<std::string> check(
      const CheckpointSource&,
      const MatchRules&) {
    return {};
  }
  /// Restores the state. Called after check() if no component complained on any
  /// rank.
  virtual void load(
      const CheckpointSource& source,
      const MatchRules& rules) = 0;
};

/// Components in the order in which they are loaded.
using ComponentList = std::vector<std::shared_ptr<CheckpointComponent>>;

/// Throws InternalError if two components have the same key.
CheckpointContents collect_contents(const ComponentList& components);

/// Returns the complaints of all components.
std::vector<std::string> check_components(
    const ComponentList& components,
    const CheckpointSource& source,
    const MatchRules& rules);

void load_components(
    const ComponentList& components,
    const CheckpointSource& source,
    const MatchRules& rules);

}  // namespace accelerate::detail
