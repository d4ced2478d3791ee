#pragma once

#include <string>

#include <c10/core/StorageImpl.h>

namespace accelerate::detail {

/// From now on reaching for the storage's memory is an error with this text.
inline void make_unreadable(c10::StorageImpl& storage, std::string text) {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(text));
}

// LibTorch before 2.14 cannot take the error back. Naming a private member in
// an explicit instantiation is allowed, and gives a way to it.
template <bool c10::StorageImpl::*member>
struct FlagAccess {
  friend bool& access_flag(c10::StorageImpl& storage) {
    return storage.*member;
  }
};
bool& access_flag(c10::StorageImpl& storage);
template struct FlagAccess<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

/// Reaching for the memory is allowed again.
template <class Storage>
void make_readable(Storage& storage) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
    storage.clear_data_ptr_access_error_msg_();
  } else {
    access_flag(storage) = false;
  }
}

}  // namespace accelerate::detail
