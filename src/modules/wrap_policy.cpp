#include "modules/wrap_policy.h"

#include <algorithm>
#include <string_view>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

bool has_parameters(const ModuleNode& module) {
  return !module.parameters.empty() ||
      std::ranges::any_of(module.children, has_parameters);
}

bool has_class(const ModuleNode& module, const std::string& name) {
  return is_class(module, name) ||
      std::ranges::any_of(module.children, [&](const ModuleNode& child) {
           return has_class(child, name);
         });
}

bool is_attention(const ModuleNode& module) {
  const auto says = [](const std::string& text) {
    const std::string lower = to_lower(text);
    return lower.find("attention") != std::string::npos ||
        lower.find("attn") != std::string::npos;
  };
  // A class may be qualified by a namespace of that name.
  const std::size_t end = module.class_name.rfind("::");
  return says(module.name) ||
      says(end == std::string::npos ? module.class_name
                                    : module.class_name.substr(end + 2));
}

// Containers that run nothing themselves, and modules that are never entered.
const std::vector<std::string> kNeverWrapped{"ModuleList", "ModuleDict"};
const std::vector<std::string> kNeverEntered{"MultiheadAttention"};

// Walks one tree for one policy. A module is visited with its dotted name,
// which is empty for the root.
class Wrapping {
 public:
  explicit Wrapping(const WrapPolicy& policy) : policy_(policy) {}

  // Wraps the elements of the outermost containers, usually the same module
  // several times.
  void by_containers(const ModuleNode& module, const std::string& name) {
    const bool is_container =
        is_class(module, "ModuleList") || is_class(module, "Sequential");
    for (const ModuleNode& child : module.children) {
      const std::string child_name = dotted_name(name, child.name);
      if (is_container && has_parameters(child)) {
        wrapped_.push_back(child_name);
      } else {
        by_containers(child, child_name);
      }
    }
  }

  void by_class(const ModuleNode& module, const std::string& name) {
    for (const ModuleNode& child : module.children)
      by_class(child, dotted_name(name, child.name));
    if (!name.empty() && is_one_of(module, policy_.class_names))
      wrapped_.push_back(name);
  }

  // Returns how many parameters were wrapped: a parent counts those that its
  // children left.
  std::int64_t by_remainder(const ModuleNode& module, const std::string& name) {
    const std::int64_t least = policy_.min_num_params;
    const std::int64_t all = num_parameters(module);
    if (all < least || is_one_of(module, kNeverEntered)) return 0;
    std::int64_t by_children = 0;
    for (const ModuleNode& child : module.children)
      by_children += by_remainder(child, dotted_name(name, child.name));
    if (name.empty() || all - by_children < least ||
        is_one_of(module, kNeverWrapped)) {
      return by_children;
    }
    wrapped_.push_back(name);
    return all;
  }

  void by_size(const ModuleNode& module, const std::string& name) {
    for (const ModuleNode& child : module.children)
      by_size(child, dotted_name(name, child.name));
    if (!name.empty() && num_parameters(module) > policy_.min_num_params)
      wrapped_.push_back(name);
  }

  void by_attention(const ModuleNode& module, const std::string& name) {
    for (const ModuleNode& child : module.children) {
      const std::string child_name = dotted_name(name, child.name);
      if (has_parameters(child) && is_attention(child)) {
        wrapped_.push_back(child_name);
      } else {
        by_attention(child, child_name);
      }
    }
  }

  // Makes units of leaves, instead of what is in them.
  void by_leaf_class(const ModuleNode& module, const std::string& name) {
    for (const ModuleNode& child : module.children) {
      const std::string child_name = dotted_name(name, child.name);
      if (!is_one_of(child, policy_.leaf_class_names)) {
        by_leaf_class(child, child_name);
        continue;
      }
      std::erase_if(wrapped_, [&](const std::string& wrapped) {
        return wrapped == child_name ||
            wrapped.starts_with(format("{}.", child_name));
      });
      // Children come before parents.
      const auto place =
          std::ranges::find_if(wrapped_, [&](const std::string& wrapped) {
            return child_name.starts_with(format("{}.", wrapped));
          });
      wrapped_.insert(place, child_name);
    }
  }

  [[nodiscard]] std::vector<std::string> take() { return std::move(wrapped_); }

 private:
  const WrapPolicy& policy_;
  std::vector<std::string> wrapped_;
};

void require_classes(
    const ModuleNode& root,
    const std::vector<std::string>& class_names,
    std::string_view setting = "transformer_cls_names_to_wrap") {
  std::vector<std::string> unknown;
  for (const std::string& name : class_names) {
    if (!has_class(root, name)) unknown.push_back(format("\"{}\"", name));
  }
  if (unknown.empty()) return;
  throw ConfigError(format(
      "[parallel] {} names {}, but no module of the model is of such a class; "
      "correct the name",
      setting,
      join(unknown, ", ")));
}

}  // namespace

std::vector<std::string> wrapped_modules(
    const ModuleNode& root,
    const WrapPolicy& policy) {
  Wrapping wrapping(policy);
  switch (policy.kind) {
    case WrapPolicy::Kind::containers:
      wrapping.by_containers(root, "");
      break;
    case WrapPolicy::Kind::none:
      break;
    case WrapPolicy::Kind::classes:
      require_classes(root, policy.class_names);
      wrapping.by_class(root, "");
      break;
    case WrapPolicy::Kind::remainder:
      if (policy.min_num_params > 0) wrapping.by_remainder(root, "");
      break;
    case WrapPolicy::Kind::size:
      wrapping.by_size(root, "");
      break;
    case WrapPolicy::Kind::attention:
      wrapping.by_attention(root, "");
      break;
  }
  if (!policy.leaf_class_names.empty()) {
    require_classes(root, policy.leaf_class_names, "transformer_moe_cls_names");
    wrapping.by_leaf_class(root, "");
  }
  return wrapping.take();
}

}  // namespace accelerate::detail
