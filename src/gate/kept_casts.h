#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// A module's fp32 parameters as autocast casts them, kept from one forward to
/// the next. Autocast's own cache ends with each forward. Thread-safe.
class KeptCasts {
 public:
  explicit KeptCasts(const torch::nn::Module& module);

  /// Returns autocast's cast of a parameter, or of a parameter's transpose;
  /// undefined for other tensors, and where autocast would keep nothing. A
  /// parameter is cast anew if it was changed in place, or lies elsewhere.
  at::Tensor cast_of(const at::Tensor& used);

  [[nodiscard]] bool is_empty() const;
  void drop();

 private:
  struct Kept {
    at::Tensor parameter;
    at::Tensor cast = {};
    std::uint32_t version = 0;
    const void* memory = nullptr;
  };

  static bool is_valid(const Kept& kept, at::ScalarType dtype);
  /// Finds the parameter that has this storage.
  Kept* find(const at::Tensor& used);
  void index();

  mutable std::mutex mutex_;
  std::vector<Kept> parameters_;
  std::unordered_map<const void*, std::size_t> by_storage_;
  std::size_t num_kept_ = 0;
};

/// While alive, this thread's products and convolutions take the kept casts of
/// parameters. Must be destroyed on the thread that made it, the innermost
/// first.
class KeptCastScope {
 public:
  explicit KeptCastScope(KeptCasts& casts);
  ~KeptCastScope();
  KeptCastScope(const KeptCastScope&) = delete;
  KeptCastScope& operator=(const KeptCastScope&) = delete;

 private:
  KeptCasts* const enclosing_;
  c10::impl::IncludeDispatchKeyGuard include_;
};

/// `tensor`, or its kept cast inside a KeptCastScope.
at::Tensor with_kept_cast(const at::Tensor& tensor);

}  // namespace accelerate::detail
