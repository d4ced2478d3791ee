// Refused: unordered containers travel in the order of their keys
#include <compare>
#include <unordered_set>

#include <accelerate/accelerator.h>

struct Key {
  int number;
#ifdef MUST_FAIL
  bool operator==(const Key& other) const = default;
#else
  auto operator<=>(const Key& other) const = default;
#endif
};
struct KeyHash {
  std::size_t operator()(const Key& key) const {
    return static_cast<std::size_t>(key.number);
  }
};

void send(
    const accelerate::Accelerator& accelerator,
    const std::unordered_set<Key, KeyHash>& keys) {
  auto all = accelerate::broadcast_object(keys, accelerator.world().group());
}
