#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/export.h>
#include <accelerate/state_dict.h>

#include "checkpoint/contents.h"
#include "checkpoint/load/destinations.h"
#include "checkpoint/load/source.h"

namespace accelerate::detail {

/// Something that has a state. save_state() and load_state() are loops over one
/// list of these, and know nothing else: what joins the list is saved, checked
/// and loaded. Made for one save or load, or registered for all of them.
class ACCELERATE_API CheckpointComponent {
 public:
  CheckpointComponent() = default;
  CheckpointComponent(const CheckpointComponent&) = delete;
  CheckpointComponent& operator=(const CheckpointComponent&) = delete;
  virtual ~CheckpointComponent() = default;

  /// Unique in a list, and the same in every version.
  [[nodiscard]] virtual std::string_view key() const = 0;
  /// Adds the state to what this rank writes. Tensors are shared, not copied.
  virtual void collect(CheckpointContents& contents) const = 0;
  /// Says why the checkpoint does not fit; changes nothing that is prepared.
  [[nodiscard]] virtual std::vector<std::string> check(
      const CheckpointSource& source,
      const MatchRules& rules) = 0;
  /// Takes the state over. Comes after check(), when no component had a
  /// complaint on any rank.
  virtual void load(
      const CheckpointSource& source,
      const MatchRules& rules) = 0;
};

/// In the order in which states are taken over.
using ComponentList = std::vector<std::shared_ptr<CheckpointComponent>>;

/// Throws InternalError if two components have one key.
ACCELERATE_API CheckpointContents
collect_contents(const ComponentList& components);

/// The complaints of all components.
ACCELERATE_API std::vector<std::string> check_components(
    const ComponentList& components,
    const CheckpointSource& source,
    const MatchRules& rules);

ACCELERATE_API void load_components(
    const ComponentList& components,
    const CheckpointSource& source,
    const MatchRules& rules);

/// Any object with a state: how it is read, and how it is set.
struct AnyStateful {
  std::function<StateDict()> state_dict;
  std::function<void(const StateDict&)> load_state_dict;
};

}  // namespace accelerate::detail
