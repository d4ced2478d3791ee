#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fuzz/targets.h"
#include "launch/store_service.h"

namespace accelerate::fuzz {

namespace {

using detail::StoreRefusal;
using detail::StoreService;
using detail::StoreSession;

constexpr std::size_t kNumClients = 3;
const std::string kSecret = "secret";

StoreService::Options small_store(bool has_secret) {
  StoreService::Options options;
  options.limits = {
      .max_key_bytes = 256,
      .max_keys_per_message = 64,
      .max_message_bytes = 2048,
      .max_total_bytes = 32U << 10U};
  options.secret = has_secret ? kSecret : "";
  options.num_machines = 3;
  return options;
}

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::abort();
}

/// A store and its clients; the last client is trusted.
class Clients {
 public:
  explicit Clients(bool has_secret)
      : options_(small_store(has_secret)), service_(options_) {
    for (std::size_t i = 0; i < kNumClients; ++i) connect(i);
  }
  Clients(const Clients&) = delete;
  Clients& operator=(const Clients&) = delete;
  ~Clients() {
    for (StoreSession* const session : open_) service_.close(*session);
  }

  void send(std::size_t client, std::string_view bytes) {
    num_bytes_ += bytes.size();
    StoreSession& session = *open_[client];
    const bool was_admitted = session.is_admitted();
    const std::size_t num_keys = service_.num_keys();
    try {
      service_.receive(session, bytes);
    } catch (const StoreRefusal&) {
      require(
          was_admitted || session.is_admitted() ||
              service_.num_keys() == num_keys,
          "a client that was not admitted changed nothing");
      service_.close(session);
      connect(client);
    }
    check();
  }
  void read_answers(std::size_t client, std::size_t most) {
    StoreSession& session = *open_[client];
    session.mark_sent(std::min(session.unsent().size(), most));
    try {
      service_.resume(session);
    } catch (const StoreRefusal&) {
      service_.close(session);
      connect(client);
    }
    check();
  }

 private:
  void connect(std::size_t client) {
    const bool is_trusted = client + 1 == kNumClients;
    StoreSession& session = sessions_.emplace_back(
        options_.limits, [is_trusted] { return is_trusted; });
    open_.resize(kNumClients);
    open_[client] = &session;
    service_.open(session);
  }
  void check() const {
    // An entry or a string takes a few hundred bytes for the nine that create
    // it.
    constexpr std::uint64_t kFactor = 32, kEach = 8192;
    const std::uint64_t memory = service_.memory();
    // Answers are copies of values, each at most the size of a message.
    const std::uint64_t answers =
        kNumClients * (2 * options_.limits.max_message_bytes + (128U << 10U));
    require(
        memory <= kFactor * num_bytes_ + kEach + answers,
        "memory grows with the bytes that arrived");
    require(
        memory <= options_.limits.max_total_bytes + answers,
        "the store keeps its limit");
  }

  StoreService::Options options_;
  StoreService service_;
  std::list<StoreSession> sessions_;
  std::vector<StoreSession*> open_;
  std::uint64_t num_bytes_ = 0;
};

}  // namespace

// Each piece is a byte that gives the client and its action, a length, and the
// bytes.
void store(Input input) {
  std::string_view rest(
      reinterpret_cast<const char*>(input.data()), input.size());
  if (rest.empty()) return;
  Clients clients((rest.front() & 1) != 0);
  rest.remove_prefix(1);
  while (rest.size() >= 2) {
    const auto head = static_cast<unsigned char>(rest[0]);
    const auto length = static_cast<unsigned char>(rest[1]);
    rest.remove_prefix(2);
    const std::size_t client = head % kNumClients;
    if (head >= 240) {
      clients.read_answers(client, length);
      continue;
    }
    const std::string_view piece = rest.substr(0, length);
    rest.remove_prefix(piece.size());
    clients.send(client, piece);
  }
}

}  // namespace accelerate::fuzz
