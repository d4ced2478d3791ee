#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <mutex>

#include <httplib.h>

namespace accelerate::cli {

struct PageServerLimits {
  /// The longest time until a connection has sent the head of a request, from
  /// its beginning or its last answer on.
  std::chrono::milliseconds head_time{3000};
  std::size_t most_head_bytes = std::size_t{64} << 10U;
  /// Connections that have not sent a head yet. One more ends the oldest.
  std::size_t most_waiting = 64;
  /// Open streams. More are refused.
  std::size_t most_streams = 256;
};

/// httplib's server with a thread for each connection, so that none keeps
/// others from being answered: neither one that never sends a complete request
/// nor one that is a stream.
class PageServer final : public httplib::Server {
 public:
  using Limits = PageServerLimits;

  explicit PageServer(Limits limits = {});

  /// Call it once a port is bound: many connections may then wait to be
  /// accepted, instead of httplib's 5.
  void lengthen_queue();
  /// Called by a handler that is about to answer with a stream. Returns false if
  /// there are too many; otherwise end_stream() has to be called once.
  [[nodiscard]] bool begin_stream();
  void end_stream();
  /// Ends connections that wait for requests, and all that wait later.
  void close_waiting();

 private:
  struct Waiting {
    socket_t socket;
    bool is_ended = false;  // its thread will notice
  };
  using Place = std::list<Waiting>::iterator;
  class Connection;

  bool process_and_close_socket(socket_t socket) override;
  Place begin_waiting(socket_t socket);
  void end_waiting(Place place);
  void end_oldest(std::size_t num_left);

  Limits limits_;
  std::mutex mutex_;
  std::list<Waiting> waiting_;   // the oldest first
  std::size_t num_waiting_ = 0;  // without those that are ended
  std::size_t num_streams_ = 0;
  bool is_closed_ = false;
};

}  // namespace accelerate::cli
