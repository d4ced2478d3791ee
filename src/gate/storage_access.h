#pragma once

#include <string>

#include <c10/core/DispatchKeySet.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

namespace accelerate::detail {

/// Makes accessing the storage's memory an error with this message.
inline void make_unreadable(c10::StorageImpl& storage, std::string message) {
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      std::move(message));
}

// LibTorch before 2.14 cannot clear the error. An explicit instantiation may
// name a private member, which gives access to it.
template <bool c10::StorageImpl::*member>
struct FlagAccess {
  friend bool& access_flag(c10::StorageImpl& storage) {
    return storage.*member;
  }
};
bool& access_flag(c10::StorageImpl& storage);
template struct FlagAccess<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

// LibTorch's API changes a tensor's keys only together with its storage.
template <c10::DispatchKeySet c10::TensorImpl::*member>
struct KeySetAccess {
  friend c10::DispatchKeySet& access_keys(c10::TensorImpl& tensor) {
    return tensor.*member;
  }
};
/// Returns a tensor's dispatch keys, to be changed.
c10::DispatchKeySet& access_keys(c10::TensorImpl& tensor);

template struct KeySetAccess<&c10::TensorImpl::key_set_>;

/// Allows access to the memory again.
template <class Storage>
void make_readable(Storage& storage) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
    storage.clear_data_ptr_access_error_msg_();
  } else {
    access_flag(storage) = false;
  }
}

}  // namespace accelerate::detail
