#include <algorithm>
#include <bit>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "format/torch/pickle_reader.h"

namespace accelerate::detail {

namespace {

std::string_view name_of(Pickle::Kind kind) {
  constexpr std::string_view kNames[]{
      "None",
      "a truth value",
      "a whole number",
      "a long whole number",
      "a number",
      "a string",
      "bytes",
      "a list",
      "a tuple",
      "a dict",
      "a set",
      "a class",
      "an object",
      "a reference"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace

bool is_global(std::string_view text, std::string_view name) {
  return std::ranges::equal(text, name, [](char a, char b) {
    return a == b || (a == '\n' && b == ' ');
  });
}

Pickle::Kind Pickle::Value::kind() const { return pickle_->nodes_[node_].kind; }

void Pickle::Value::wrong(std::string_view wanted) const {
  throw CheckpointError(format(
      "[torch] {}: expected {}, but found {}",
      pickle_->name_,
      wanted,
      name_of(kind())));
}

std::int64_t Pickle::Value::integer() const {
  if (kind() != Kind::integer && kind() != Kind::boolean) {
    wrong("a whole number");
  }
  return static_cast<std::int64_t>(pickle_->nodes_[node_].payload);
}

double Pickle::Value::real() const {
  if (kind() == Kind::integer) return static_cast<double>(integer());
  if (kind() != Kind::real) wrong("a number");
  return std::bit_cast<double>(pickle_->nodes_[node_].payload);
}

std::string_view Pickle::Value::text() const {
  if (kind() != Kind::text && kind() != Kind::bytes &&
      kind() != Kind::long_integer && kind() != Kind::global) {
    wrong("a string");
  }
  const Node& node = pickle_->nodes_[node_];
  if (node.kind == Kind::global && (node.payload & kComposed) != 0) {
    return pickle_->names_[node.payload & ~kComposed];
  }
  return {
      reinterpret_cast<const char*>(pickle_->input_.data()) + node.payload,
      node.size};
}

std::size_t Pickle::Value::size() const {
  const Kind what = kind();
  const bool holds = what == Kind::list || what == Kind::tuple ||
      what == Kind::set || what == Kind::call || what == Kind::persistent ||
      what == Kind::dict;
  if (!holds) wrong("a list, tuple, dict or set");
  const std::size_t count =
      pickle_->containers_[pickle_->nodes_[node_].payload].size();
  return what == Kind::dict ? count / 2 : count;
}

Pickle::Value Pickle::Value::item(std::size_t index) const {
  if (kind() == Kind::dict || index >= size()) wrong("more items");
  return {
      *pickle_, pickle_->containers_[pickle_->nodes_[node_].payload][index]};
}

Pickle::Value Pickle::Value::key(std::size_t index) const {
  if (kind() != Kind::dict || index >= size()) wrong("a dict with more items");
  return {
      *pickle_,
      pickle_->containers_[pickle_->nodes_[node_].payload][2 * index]};
}

Pickle::Value Pickle::Value::value(std::size_t index) const {
  if (kind() != Kind::dict || index >= size()) wrong("a dict with more items");
  return {
      *pickle_,
      pickle_->containers_[pickle_->nodes_[node_].payload][2 * index + 1]};
}

Pickle::Value Pickle::Value::as_dict() const {
  if (kind() == Kind::dict) return *this;
  const bool has_entries =
      kind() == Kind::call && size() > 2 && item(2).kind() == Kind::dict;
  if (!has_entries) wrong("a dict");
  return item(2);
}

bool Pickle::Value::is_call_of(std::string_view global) const {
  if (kind() != Kind::call || item(0).kind() != Kind::global) return false;
  return is_global(item(0).text(), global);
}

}  // namespace accelerate::detail
