#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include <accelerate/export.h>

namespace accelerate::detail {

/// The pointer of a handle. Moving copies it, so a moved-from handle still
/// refers to its object.
template <class T>
class KeptPtr : public std::shared_ptr<T> {
 public:
  using std::shared_ptr<T>::shared_ptr;
  KeptPtr() = default;
  KeptPtr(std::shared_ptr<T> shared) : std::shared_ptr<T>(std::move(shared)) {}
  KeptPtr(const KeptPtr&) = default;
  KeptPtr& operator=(const KeptPtr&) = default;
  ~KeptPtr() = default;
};

/// The owner of an object whose class a header only declares. A
/// std::unique_ptr would do, but makes each file of a program compile some
/// ninety class templates per class.
template <class T>
class OwnedPtr {
 public:
  OwnedPtr() = default;
  OwnedPtr(std::unique_ptr<T> owner) : object_(owner.release()) {}
  OwnedPtr(OwnedPtr&& other) noexcept
      : object_(std::exchange(other.object_, nullptr)) {}
  OwnedPtr& operator=(OwnedPtr&& other) noexcept {
    delete std::exchange(object_, std::exchange(other.object_, nullptr));
    return *this;
  }
  ~OwnedPtr() {
    static_assert(sizeof(T) > 0, "its class must be complete to be destroyed");
    delete object_;
  }

  [[nodiscard]] T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  T* object_ = nullptr;
};

/// Throws ConfigError: an object of this class was used after it was moved
/// from.
[[noreturn]] ACCELERATE_API void throw_moved_from(std::string_view class_name);

/// The name of a class, as a template argument.
template <std::size_t size>
struct ClassName {
  consteval ClassName(const char (&name)[size]) {
    std::copy_n(name, size, text);
  }
  char text[size];
};

/// The pointer of an object that has one owner: `Pointer` is an OwnedPtr, a
/// unique_ptr or a shared_ptr. Dereferencing it throws ConfigError once the object was moved
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
