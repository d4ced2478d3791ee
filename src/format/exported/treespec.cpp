#include "format/exported/treespec.h"

#include <cstddef>
#include <functional>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/limits.h"
#include "base/text/json_text.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using Json = nlohmann::json;

std::string text_of(const Json& key) {
  return key.is_string() ? key.get<std::string>() : key.dump();
}

std::vector<std::string> texts_of(const Json& list) {
  std::vector<std::string> texts;
  for (const Json& item : list) texts.push_back(text_of(item));
  return texts;
}

// Names of a node's children. The context of a dict is its keys, and so is
// that of a ModelOutput, in some versions as the last item of a list; a
// named tuple's is the name of its type.
std::vector<std::string> keys_of(
    const Json& spec,
    const NamedTupleFields& fields) {
  const std::size_t count = spec.at("children_spec").size();
  const Json& context = spec.at("context");
  if (!context.is_string()) return {};
  const auto& text = context.get_ref<const std::string&>();
  if (const auto found = fields.find(text); found != fields.end()) {
    return found->second;
  }
  const Json value = parse_json(text).value;
  if (!value.is_array()) return {};
  for (const Json& part : value) {
    if (part.is_array() && part.size() == count) return texts_of(part);
  }
  return value.size() == count ? texts_of(value) : std::vector<std::string>();
}

class LeafNames {
 public:
  LeafNames(const NamedTupleFields& fields, std::string file)
      : fields_(fields), file_(std::move(file)) {}

  void add(const Json& spec, const std::string& prefix) {
    if (prefix.size() > kMostNameBytes) {
      throw CheckpointError(format(
          "[exported] {} cannot be read: an argument or result has a name of "
          "more than {} bytes",
          file_,
          kMostNameBytes));
    }
    if (spec.at("type").is_null()) {
      names_.push_back(prefix);
      return;
    }
    const std::vector<std::string> keys = keys_of(spec, fields_);
    std::size_t i = 0;
    for (const Json& child : spec.at("children_spec")) {
      const std::string key = i < keys.size() ? keys[i] : std::to_string(i);
      add(child, prefix.empty() ? key : prefix + "." + key);
      ++i;
    }
  }
  std::vector<std::string> take() { return std::move(names_); }

 private:
  const NamedTupleFields& fields_;
  std::string file_;
  std::vector<std::string> names_;
};

// Calls `body` with the specification in a treespec: [version, specification].
std::vector<std::string> names_in(
    std::string_view spec,
    const NamedTupleFields& fields,
    const std::string& name,
    const std::function<void(const Json&, LeafNames&)>& body) {
  const ParsedJson parsed = parse_json(spec);
  std::string complaint = parsed.complaint;
  if (complaint.empty()) {
    try {
      LeafNames names(fields, name);
      body(parsed.value.at(1), names);
      return names.take();
    } catch (const Json::exception& error) {
      complaint = json_complaint(error);
    }
  }
  throw CheckpointError(format(
      "[exported] {} cannot be read: the structure of its arguments or "
      "results: {}",
      name,
      complaint));
}

}  // namespace

std::vector<std::string> result_names(
    std::string_view spec,
    const NamedTupleFields& fields,
    const std::string& name) {
  return names_in(spec, fields, name, [](const Json& root, LeafNames& names) {
    names.add(root, "");
  });
}

std::vector<std::string> argument_names(
    std::string_view spec,
    const std::vector<std::string>& arguments,
    const NamedTupleFields& fields,
    const std::string& name) {
  return names_in(spec, fields, name, [&](const Json& root, LeafNames& names) {
    // A tuple of the positional arguments and a dict of the others.
    std::size_t next = 0;
    for (const Json& kind : root.at("children_spec")) {
      const std::vector<std::string> keys = keys_of(kind, fields);
      std::size_t i = 0;
      for (const Json& child : kind.at("children_spec")) {
        const std::string key =
            i < keys.size() ? keys[i] : std::to_string(next);
        names.add(child, next < arguments.size() ? arguments[next] : key);
        ++next;
        ++i;
      }
    }
  });
}

}  // namespace accelerate::detail
