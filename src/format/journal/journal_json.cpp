#include "format/journal/journal_json.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "base/text/json_text.h"

namespace accelerate::detail {

namespace {

// Objects with fewer members are searched.
constexpr std::size_t kFewMembers = 16;

// Receives the events of the parser. The library's own builder adds each member
// by a search.
class JsonBuilder {
 public:
  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(std::int64_t value) { return put(value); }
  bool number_unsigned(std::uint64_t value) { return put(value); }
  bool number_float(double value, const std::string&) { return put(value); }
  bool string(std::string& value) { return put(std::move(value)); }
  bool binary(JournalJson::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(JournalJson::object()); }
  bool start_array(std::size_t) { return open(JournalJson::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    open_.back().key = std::move(name);
    return true;
  }
  bool parse_error(
      std::size_t,
      const std::string&,
      const nlohmann::detail::exception&) {
    return false;
  }

  JournalJson take() { return std::move(root_); }

 private:
  struct Open {
    JournalJson value;
    JsonMembers members = {};
    std::string key = {};
  };

  bool open(JournalJson value) {
    open_.push_back({std::move(value)});
    return open_.size() <= kMostJsonDepth;
  }
  bool close() {
    JournalJson value = std::move(open_.back().value);
    open_.pop_back();
    return put(std::move(value));
  }
  bool put(JournalJson value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Open& parent = open_.back(); parent.value.is_array()) {
      parent.value.push_back(std::move(value));
    } else {
      parent.members.of(parent.value, parent.key) = std::move(value);
    }
    return true;
  }

  JournalJson root_;
  std::vector<Open> open_;
};

// Without this, a vector of pairs with constant names would copy all values,
// with all that is in them, whenever it grows.
void make_room(JournalJson::object_t::Container& members) {
  if (members.size() < members.capacity()) return;
  JournalJson::object_t::Container larger;
  larger.reserve(2 * members.size());
  for (auto& [name, value] : members)
    larger.emplace_back(name, std::move(value));
  members.swap(larger);
}

}  // namespace

JournalJson& JsonMembers::of(JournalJson& object, const std::string& name) {
  using Object = JournalJson::object_t;
  auto& members = object.get_ref<Object&>();
  if (members.size() < kFewMembers) return members[name];
  if (places_.empty()) {
    std::size_t place = 0;
    for (const auto& [key, value] : members) places_.emplace(key, place++);
  }
  const auto [found, is_new] = places_.try_emplace(name, members.size());
  if (is_new) {
    make_room(members);
    static_cast<Object::Container&>(members).emplace_back(name, nullptr);
  }
  return (members.begin() + static_cast<std::ptrdiff_t>(found->second))->second;
}

std::string json_text(const JournalJson& json) {
  return json.dump(-1, ' ', false, JournalJson::error_handler_t::replace);
}

std::optional<JournalJson> parse_journal_json(std::string_view text) {
  JsonBuilder builder;
  if (!JournalJson::sax_parse(text, &builder)) return std::nullopt;
  return builder.take();
}

}  // namespace accelerate::detail
