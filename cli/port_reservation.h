#pragma once

#include <string>

namespace accelerate::cli {

/// A TCP port of this machine, bound but not listened at. While this object
/// lives the system gives the port to nobody who asks for a free one and uses
/// it for no outgoing connection, so that launchers started together never get
/// the same port; rank 0 can still listen there, as it asks by number and with
/// SO_REUSEADDR (LibTorch's store does).
class PortReservation {
 public:
  /// With port 0 the system chooses. Throws ConfigError if somebody listens
  /// there already, or if `address` is not one of this machine's.
  PortReservation(const std::string& address, int port);
  ~PortReservation();
  PortReservation(const PortReservation&) = delete;
  PortReservation& operator=(const PortReservation&) = delete;

  int port() const { return port_; }

 private:
  int descriptor_ = -1;
  int port_ = 0;
};

}  // namespace accelerate::cli
