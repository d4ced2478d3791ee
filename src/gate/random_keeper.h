#pragma once

namespace accelerate::detail {

/// A keeper whose call() may draw random numbers, which a recomputation has to
/// repeat. A second base of such keepers.
class RandomKeeper {
 public:
  RandomKeeper() = default;
  RandomKeeper(const RandomKeeper&) = delete;
  RandomKeeper& operator=(const RandomKeeper&) = delete;

  [[nodiscard]] virtual bool draws_random_numbers() const = 0;

 protected:
  ~RandomKeeper() = default;
};

}  // namespace accelerate::detail
