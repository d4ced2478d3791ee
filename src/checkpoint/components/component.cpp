#include "checkpoint/components/component.h"

#include <set>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

CheckpointContents collect_contents(const ComponentList& components) {
  CheckpointContents contents;
  std::set<std::string_view> keys;
  for (const auto& component : components) {
    if (!keys.insert(component->key()).second) {
      throw InternalError(format(
          "[checkpoint] two components are called {}", component->key()));
    }
    component->collect(contents);
  }
  return contents;
}

std::vector<std::string> check_components(
    const ComponentList& components,
    const CheckpointSource& source,
    const MatchRules& rules) {
  std::vector<std::string> complaints;
  for (const auto& component : components) {
    for (std::string& complaint : component->check(source, rules)) {
      complaints.push_back(std::move(complaint));
    }
  }
  return complaints;
}

void load_components(
    const ComponentList& components,
    const CheckpointSource& source,
    const MatchRules& rules) {
  for (const auto& component : components) component->load(source, rules);
}

}  // namespace accelerate::detail
