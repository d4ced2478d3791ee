#include "cli/port_reservation.h"

#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <accelerate/error.h>

namespace accelerate::cli {
namespace {

using ::testing::HasSubstr;

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// As LibTorch's store does it.
int listen_at(int port) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in address = loopback(port);
  EXPECT_EQ(
      bind(
          descriptor,
          reinterpret_cast<const sockaddr*>(&address),
          sizeof address),
      0);
  EXPECT_EQ(listen(descriptor, 1), 0);
  return descriptor;
}

TEST(PortReservation, GivesNobodyElseItsPort) {
  std::set<int> ports;
  std::vector<std::unique_ptr<PortReservation>> held;
  for (int i = 0; i < 500; ++i) {
    held.push_back(std::make_unique<PortReservation>("127.0.0.1", 0));
    EXPECT_TRUE(ports.insert(held.back()->port()).second);
  }
}

TEST(PortReservation, LetsTheStoreListenThere) {
  const PortReservation reservation("127.0.0.1", 0);
  const int server = listen_at(reservation.port());
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(reservation.port());
  EXPECT_EQ(
      connect(
          client, reinterpret_cast<const sockaddr*>(&address), sizeof address),
      0);
  close(client);
  close(server);
}

TEST(PortReservation, RefusesAPortWhereSomebodyListens) {
  auto reservation = std::make_unique<PortReservation>("127.0.0.1", 0);
  const int port = reservation->port();
  const int server = listen_at(port);
  reservation.reset();
  try {
    const PortReservation other("127.0.0.1", port);
    ADD_FAILURE() << "not refused";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("is taken by another program"));
  }
  close(server);
}

TEST(PortReservation, RefusesAnAddressOfAnotherMachine) {
  EXPECT_THROW(PortReservation("192.0.2.1", 0), ConfigError);
}

}  // namespace
}  // namespace accelerate::cli
