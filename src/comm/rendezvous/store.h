#pragma once

#include <chrono>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <accelerate/world.h>

namespace accelerate::detail {

struct StoreImpl {
  c10::intrusive_ptr<c10d::Store> store;
  int port = 0;
};

/// Returns a second client of the same store, for another thread: a TCP client
/// serialises its callers, so one caller's blocking wait would hold up the
/// rest.
c10::intrusive_ptr<c10d::Store> own_client(const Store& store);

/// Polls until the key exists. Returns false after `timeout`.
bool wait_for_key(
    c10d::Store& store,
    const std::string& key,
    std::chrono::milliseconds timeout);

}  // namespace accelerate::detail
