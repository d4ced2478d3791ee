#include "cli/watch/web/page_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace accelerate::cli {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How long a client may take to make room for more of an answer, or to send more
// of a body.
constexpr milliseconds kStall(5000);

// False if it is not ready in time.
bool await(socket_t socket, short event, milliseconds time) {
  pollfd polled{socket, event, 0};
  const auto end = Clock::now() + time;
  while (true) {
    const auto left =
        std::chrono::ceil<milliseconds>(end - Clock::now()).count();
    if (left < 0) return false;
    const int ready = ::poll(&polled, 1, static_cast<int>(left));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (ready == 0) return false;
  }
}

class ThreadPerTask final : public httplib::TaskQueue {
 public:
  void enqueue(std::function<void()> task) override {
    {
      const std::lock_guard lock(mutex_);
      ++num_running_;
    }
    try {
      std::thread([this, task] { run(task); }).detach();
    } catch (const std::system_error&) {
      run(task);  // no more threads; others wait for this one
    }
  }
  void shutdown() override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return num_running_ == 0; });
  }

 private:
  void run(const std::function<void()>& task) {
    task();
    const std::lock_guard lock(mutex_);
    --num_running_;
    ended_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  std::size_t num_running_ = 0;
};

}  // namespace

// The stream from which httplib reads requests, and to which it writes answers.
// Reading the head of a request has a time limit; anything else may take as
// long as it makes progress.
class PageServer::Connection final : public httplib::Stream {
 public:
  Connection(PageServer& server, socket_t socket)
      : server_(server), socket_(socket) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection() override {
    end_head();
    ::shutdown(socket_, SHUT_RDWR);
    ::close(socket_);
  }

  void begin_head() {
    place_ = server_.begin_waiting(socket_);
    head_end_ = Clock::now() + server_.limits_.head_time;
    num_head_bytes_ = line_bytes_ = 0;
  }
  // Whether the head of a request has begun to arrive.
  bool has_request() { return begin_ < end_ || fill() > 0; }

  [[nodiscard]] bool is_readable() const override {
    return begin_ < end_ || await(socket_, POLLIN, milliseconds(0));
  }
  [[nodiscard]] bool is_writable() const override {
    char byte = 0;
    const ssize_t peeked = ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return peeked != 0 && await(socket_, POLLOUT, kStall);
  }
  ssize_t read(char* bytes, std::size_t size) override {
    if (begin_ == end_) {
      const ssize_t num = fill();
      if (num <= 0) return num;
    }
    const std::size_t num = std::min(size, end_ - begin_);
    std::copy_n(buffer_.data() + begin_, num, bytes);
    begin_ += num;
    if (place_) note_head({bytes, num});
    return static_cast<ssize_t>(num);
  }
  ssize_t write(const char* bytes, std::size_t size) override {
    ssize_t num = -1;
    do {
      if (!await(socket_, POLLOUT, kStall)) return -1;
      num = ::send(socket_, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (num < 0 && (errno == EAGAIN || errno == EINTR));
    return num;
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    ip = "127.0.0.1";
    port = 0;
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    get_remote_ip_and_port(ip, port);
  }
  [[nodiscard]] socket_t socket() const override { return socket_; }

 private:
  ssize_t fill() {
    const auto left = place_
        ? std::chrono::ceil<milliseconds>(head_end_ - Clock::now())
        : kStall;
    if (num_head_bytes_ > server_.limits_.most_head_bytes) return -1;
    if (!await(socket_, POLLIN, left)) return -1;
    const ssize_t num =
        ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    begin_ = 0;
    end_ = static_cast<std::size_t>(std::max<ssize_t>(num, 0));
    return num;
  }
  // An empty line ends the head.
  void note_head(std::string_view bytes) {
    num_head_bytes_ += bytes.size();
    for (const char byte : bytes) {
      if (byte == '\n' && std::exchange(line_bytes_, 0) == 0) return end_head();
      if (byte != '\n' && byte != '\r') ++line_bytes_;
    }
  }
  void end_head() {
    if (place_) server_.end_waiting(*place_);
    place_.reset();
    num_head_bytes_ = 0;
  }

  PageServer& server_;
  socket_t socket_;
  std::array<char, 4096> buffer_{};
  std::size_t begin_ = 0, end_ = 0;  // of what is left in it
  std::optional<Place> place_;       // while it waits for a head
  Clock::time_point head_end_;
  std::size_t num_head_bytes_ = 0;
  std::size_t line_bytes_ = 0;
};

PageServer::PageServer(Limits limits) : limits_(limits) {
  new_task_queue = [] { return new ThreadPerTask; };
}

void PageServer::lengthen_queue() {
  constexpr int kQueueLength = 128;
  // A second call changes the length only.
  ::listen(svr_sock_, kQueueLength);
}

bool PageServer::process_and_close_socket(socket_t socket) {
  constexpr int kMostRequests = 100;
  Connection connection(*this, socket);
  for (int i = 1; i <= kMostRequests; ++i) {
    bool is_closed = false;
    connection.begin_head();
    if (!connection.has_request() ||
        !process_request(connection, i == kMostRequests, is_closed, nullptr) ||
        is_closed)
      return false;
  }
  return true;
}

PageServer::Place PageServer::begin_waiting(socket_t socket) {
  const std::lock_guard lock(mutex_);
  const Place place = waiting_.insert(waiting_.end(), {socket});
  ++num_waiting_;
  end_oldest(is_closed_ ? 0 : limits_.most_waiting);
  return place;
}

// Ends the oldest connections but `num_left`. Called under the lock, so that
// their threads do not close them meanwhile.
void PageServer::end_oldest(std::size_t num_left) {
  for (Waiting& each : waiting_) {
    if (num_waiting_ <= num_left) return;
    if (each.is_ended) continue;
    each.is_ended = true;
    --num_waiting_;
    ::shutdown(each.socket, SHUT_RDWR);
  }
}

void PageServer::end_waiting(Place place) {
  const std::lock_guard lock(mutex_);
  if (!place->is_ended) --num_waiting_;
  waiting_.erase(place);
}

void PageServer::close_waiting() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  end_oldest(0);
}

bool PageServer::begin_stream() {
  const std::lock_guard lock(mutex_);
  if (num_streams_ == limits_.most_streams) return false;
  ++num_streams_;
  return true;
}

void PageServer::end_stream() {
  const std::lock_guard lock(mutex_);
  --num_streams_;
}

}  // namespace accelerate::cli
