#pragma once

#include <string>
#include <vector>

#include "comm/transport/transport.h"

namespace accelerate::detail {

/// What the ranks of a group tell each other through the store while they
/// connect.
class Handshake {
 public:
  /// `purpose`: sets its keys apart from those of others.
  Handshake(const ConnectRequest& request, const std::string& purpose);

  void tell(const std::string& key, const std::string& value);
  /// Waits until `rank` has told it; throws DistributedError if it does not.
  std::string ask(const std::string& key, int rank);

  /// Tells `value`, and returns what all ranks told, by rank.
  std::vector<std::string> exchange(
      const std::string& key,
      const std::string& value);

 private:
  const ConnectRequest& request_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace accelerate::detail
