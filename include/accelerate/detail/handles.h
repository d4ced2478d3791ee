#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include <accelerate/export.h>

namespace accelerate::detail {

/// The pointer of a handle, which a move copies: a handle that was moved from
/// still refers to its object.
template <class T>
class KeptPtr : public std::shared_ptr<T> {
 public:
  using std::shared_ptr<T>::shared_ptr;
  KeptPtr() = default;
  KeptPtr(std::shared_ptr<T> shared)
      : std::shared_ptr<T>(std::move(shared)) {}
  KeptPtr(const KeptPtr&) = default;
  KeptPtr& operator=(const KeptPtr&) = default;
  ~KeptPtr() = default;
};

/// Throws ConfigError: an object of this class was used after it was moved
/// from.
[[noreturn]] ACCELERATE_API void throw_moved_from(std::string_view class_name);

/// The name of a class as a template argument.
template <std::size_t size>
struct ClassName {
  consteval ClassName(const char (&name)[size]) {
    std::copy_n(name, size, text);
  }
  char text[size];
};

/// The pointer of an object that has one owner: `Pointer` is a unique_ptr or a
/// shared_ptr. Dereferencing it throws ConfigError once the object was moved
/// from.
template <class Pointer, ClassName name>
class MovedCheck : public Pointer {
 public:
  using Pointer::Pointer;
  MovedCheck() = default;
  MovedCheck(Pointer owner) : Pointer(std::move(owner)) {}

  auto* operator->() const {
    require_present();
    return Pointer::get();
  }
  auto& operator*() const {
    require_present();
    return *Pointer::get();
  }

 private:
  void require_present() const {
    if (!*this) throw_moved_from(name.text);
  }
};

}  // namespace accelerate::detail
