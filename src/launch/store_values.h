#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace accelerate::detail {

/// The dictionary of a store, which tracks how much memory it holds. A function
/// that throws std::bad_alloc has changed nothing.
class StoreValues {
 public:
  /// Returns null if the key does not exist. The pointer is valid until the
  /// key's value changes.
  [[nodiscard]] const std::string* find(const std::string& key) const;
  [[nodiscard]] bool contains(const std::string& key) const {
    return values_.contains(key);
  }

  /// Sets all pairs (key, value, key, value ...) or none; a later value of a
  /// key replaces an earlier one.
  void set_all(std::vector<std::string> pairs);
  void set(std::string key, std::string value);
  /// Appends to the value; a missing key begins empty.
  void append(const std::string& key, std::string_view more);
  /// Returns whether the key existed.
  bool erase(const std::string& key);

  [[nodiscard]] std::size_t size() const { return values_.size(); }
  /// Estimated number of bytes held.
  [[nodiscard]] std::uint64_t memory() const { return memory_; }

 private:
  using Map = std::unordered_map<std::string, std::string>;

  static std::uint64_t memory_of(const Map::value_type& entry);

  Map values_;
  std::uint64_t memory_ = 0;
};

}  // namespace accelerate::detail
