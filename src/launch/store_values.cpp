#include "launch/store_values.h"

#include <utility>

namespace accelerate::detail {

namespace {

// A node, its place in the table, and the allocator's overhead.
constexpr std::uint64_t kBytesPerEntry = 160;

}  // namespace

std::uint64_t StoreValues::memory_of(const Map::value_type& entry) {
  return entry.first.capacity() + entry.second.capacity() + kBytesPerEntry;
}

const std::string* StoreValues::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

void StoreValues::set_all(std::vector<std::string> pairs) {
  // Everything that can fail comes first: nodes are made separately, and the
  // table reserves room for them.
  Map staged;
  staged.reserve(pairs.size() / 2);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    staged.insert_or_assign(std::move(pairs[i]), std::move(pairs[i + 1]));
  }
  values_.reserve(values_.size() + staged.size());
  while (!staged.empty()) {
    auto node = staged.extract(staged.begin());
    const auto found = values_.find(node.key());
    if (found == values_.end()) {
      memory_ += memory_of(*values_.insert(std::move(node)).position);
    } else {
      memory_ -= memory_of(*found);
      found->second.swap(node.mapped());
      memory_ += memory_of(*found);
    }
  }
}

void StoreValues::set(std::string key, std::string value) {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    const auto placed = values_.emplace(std::move(key), std::move(value));
    memory_ += memory_of(*placed.first);
    return;
  }
  memory_ -= memory_of(*found);
  found->second.swap(value);
  memory_ += memory_of(*found);
}

void StoreValues::append(const std::string& key, std::string_view more) {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    set(key, std::string(more));
    return;
  }
  const std::uint64_t before = memory_of(*found);
  found->second.append(more);
  memory_ += memory_of(*found) - before;
}

bool StoreValues::erase(const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  memory_ -= memory_of(*found);
  values_.erase(found);
  return true;
}

}  // namespace accelerate::detail
