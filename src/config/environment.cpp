#include "config/environment.h"

#include <unistd.h>

#include <utility>

#include "config/thread_environment.h"

namespace accelerate::detail {

Environment::Environment(
    std::map<std::string, std::string, std::less<>> variables)
    : variables_(std::move(variables)) {}

Environment Environment::current() {
  Environment copy;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    copy.set(
        std::string(text.substr(0, equals)),
        std::string(text.substr(equals + 1)));
  }
  if (const auto* own = ThreadEnvironment::variables_of_thread()) {
    for (const auto& [name, value] : *own) copy.set(name, value);
  }
  return copy;
}

std::optional<std::string> Environment::get(std::string_view name) const {
  const auto found = variables_.find(name);
  if (found == variables_.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

void Environment::set(std::string name, std::string value) {
  variables_.insert_or_assign(std::move(name), std::move(value));
}

}  // namespace accelerate::detail
