#pragma once

#include <string>
#include <vector>

#include "comm/transport/transport.h"

namespace accelerate::detail {

/// Exchanges values through the store between the ranks of a group while they
/// connect.
class Handshake {
 public:
  /// `purpose` distinguishes its keys from those of other handshakes.
  Handshake(const ConnectRequest& request, const std::string& purpose);

  void publish(const std::string& key, const std::string& value);
  /// Waits until `rank` has published `key`; throws DistributedError if it does
  /// not.
  std::string ask(const std::string& key, int rank);

  /// Publishes `value`, and returns the values of all ranks, by rank.
  std::vector<std::string> exchange(
      const std::string& key,
      const std::string& value);

 private:
  const ConnectRequest& request_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace accelerate::detail
