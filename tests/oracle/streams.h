#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include <torch/torch.h>

namespace accelerate::oracle {

/// 0 .. size - 1, one after another.
class Stream {
 public:
  explicit Stream(std::int64_t size) : size_(size) {}
  std::optional<std::tuple<at::Tensor>> next() {
    if (next_ == size_) return std::nullopt;
    return std::tuple{torch::tensor(next_++)};
  }
  void reset() { next_ = 0; }

 protected:
  std::int64_t size_;

 private:
  std::int64_t next_ = 0;
};

class SizedStream : public Stream {
 public:
  using Stream::Stream;
  [[nodiscard]] std::int64_t size() const { return size_; }
};

}  // namespace accelerate::oracle
