#pragma once

#include <functional>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace accelerate::detail {

/// The store of one generation of an elastic group: every call, and every wait,
/// throws DistributedError once the generation is broken, so that no rank waits
/// for keys of a rank that has ended.
class GenerationStore final : public c10d::Store {
 public:
  GenerationStore(
      c10::intrusive_ptr<c10d::Store> store,
      std::function<bool()> is_broken);

  c10::intrusive_ptr<c10d::Store> clone() override;

  using Store::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value)
      override;
  using Store::compareSet;
  std::vector<std::uint8_t> compareSet(
      const std::string& key,
      const std::vector<std::uint8_t>& expected,
      const std::vector<std::uint8_t>& desired) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(
      const std::vector<std::string>& keys,
      const std::chrono::milliseconds& timeout) override;

  const std::chrono::milliseconds& getTimeout() const noexcept override {
    return store_->getTimeout();
  }
  void setTimeout(const std::chrono::milliseconds& timeout) override {
    store_->setTimeout(timeout);
  }

 private:
  void require_whole() const;

  c10::intrusive_ptr<c10d::Store> store_;
  std::function<bool()> is_broken_;
};

}  // namespace accelerate::detail
