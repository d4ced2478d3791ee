#include "comm/rendezvous/generation_store.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include <accelerate/error.h>

namespace accelerate::detail {

using std::chrono::milliseconds;
using Value = std::vector<std::uint8_t>;

GenerationStore::GenerationStore(
    c10::intrusive_ptr<c10d::Store> store,
    std::function<bool()> is_broken)
    : store_(std::move(store)), is_broken_(std::move(is_broken)) {}

void GenerationStore::require_whole() const {
  if (!is_broken_()) return;
  throw DistributedError(
      "[comm] another rank has ended; the ranks are beginning the next "
      "generation of their group");
}

c10::intrusive_ptr<c10d::Store> GenerationStore::clone() {
  return c10::make_intrusive<GenerationStore>(store_->clone(), is_broken_);
}

void GenerationStore::set(const std::string& key, const Value& value) {
  require_whole();
  store_->set(key, value);
}

Value GenerationStore::compareSet(
    const std::string& key,
    const Value& expected,
    const Value& desired) {
  require_whole();
  return store_->compareSet(key, expected, desired);
}

Value GenerationStore::get(const std::string& key) {
  wait({key}, getTimeout());
  return store_->get(key);
}

std::int64_t GenerationStore::add(const std::string& key, std::int64_t amount) {
  require_whole();
  return store_->add(key, amount);
}

bool GenerationStore::deleteKey(const std::string& key) {
  require_whole();
  return store_->deleteKey(key);
}

bool GenerationStore::check(const std::vector<std::string>& keys) {
  require_whole();
  return store_->check(keys);
}

std::int64_t GenerationStore::getNumKeys() {
  require_whole();
  return store_->getNumKeys();
}

void GenerationStore::wait(const std::vector<std::string>& keys) {
  wait(keys, getTimeout());
}

void GenerationStore::wait(
    const std::vector<std::string>& keys,
    const milliseconds& timeout) {
  // Waits in short intervals, and checks the generation in between.
  constexpr milliseconds kLook{50};
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    require_whole();
    const auto waited = std::chrono::duration_cast<milliseconds>(
        std::chrono::steady_clock::now() - start);
    const milliseconds left =
        timeout > milliseconds::zero() ? timeout - waited : kLook;
    try {
      store_->wait(keys, std::clamp(left, milliseconds(1), kLook));
      return;
    } catch (const c10::DistStoreError&) {
      if (timeout > milliseconds::zero() && waited >= timeout) throw;
    }
  }
}

}  // namespace accelerate::detail
