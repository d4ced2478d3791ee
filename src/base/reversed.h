#pragma once

namespace accelerate::detail {

/// A container's elements from last to first, for a range-based for loop. As
/// std::views::reverse, which Clang 15 cannot compile with GCC's library.
template <class Container>
class Reversed {
 public:
  explicit Reversed(Container& container) : container_(container) {}
  auto begin() const { return container_.rbegin(); }
  auto end() const { return container_.rend(); }

 private:
  Container& container_;
};

}  // namespace accelerate::detail
