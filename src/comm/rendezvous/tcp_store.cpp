#include "comm/rendezvous/tcp_store.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>

#include <accelerate/error.h>

#include "base/machine/network.h"
#include "base/text/text.h"
#include "launch/store_protocol.h"

namespace accelerate::detail {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using Value = std::vector<std::uint8_t>;

// LibTorch's clients put this before all keys.
constexpr char kKeyPrefix = '/';

class StoreMessage {
 public:
  explicit StoreMessage(StoreQuery query) { number(query); }

  template <class T>
  StoreMessage& number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  StoreMessage& key(const std::string& key) {
    number(static_cast<std::uint64_t>(key.size() + 1));
    bytes_ += kKeyPrefix;
    bytes_ += key;
    return *this;
  }
  StoreMessage& keys(const std::vector<std::string>& keys) {
    number(static_cast<std::uint64_t>(keys.size()));
    for (const std::string& each : keys) key(each);
    return *this;
  }
  StoreMessage& value(const Value& value) {
    number(static_cast<std::uint64_t>(value.size()));
    bytes_.append(value.begin(), value.end());
    return *this;
  }

  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Also applies to a connection that is being made.
void set_send_timeout(int socket, milliseconds timeout) {
  timeval value{};
  value.tv_sec = timeout.count() / 1000;
  value.tv_usec = timeout.count() % 1000 * 1000;
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &value, sizeof value);
}

// Returns -1 if none of the addresses answers.
int connect_to(const std::string& host, int port, milliseconds timeout) {
  const Addresses found(host, port);
  for (const addrinfo* each = found.first(); each != nullptr;
       each = each->ai_next) {
    const int socket =
        ::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, 0);
    if (socket < 0) continue;
    set_send_timeout(socket, timeout);
    if (::connect(socket, each->ai_addr, each->ai_addrlen) == 0) return socket;
    ::close(socket);
  }
  return -1;
}

std::string names_of(const std::vector<std::string>& keys) {
  constexpr std::size_t kMost = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(keys.size(), kMost); ++i)
    text += format("{}\"{}\"", i == 0 ? "" : ", ", keys[i]);
  if (keys.size() > kMost) text += format(" and {} more", keys.size() - kMost);
  return text;
}

}  // namespace

TcpStore::TcpStore(
    std::string host,
    int port,
    milliseconds timeout,
    std::shared_ptr<void> server)
    : Store(timeout),
      host_(std::move(host)),
      port_(port),
      server_(std::move(server)) {
  connect();
  try {
    introduce();
  } catch (const c10::DistError&) {
    if (socket_ >= 0) ::close(socket_);
    throw DistributedError(format(
        "[comm] the process at {}:{} does not answer as a store; is "
        "main_process_port that of rank 0?",
        host_,
        port_));
  }
}

TcpStore::~TcpStore() {
  if (socket_ >= 0) ::close(socket_);
}

c10::intrusive_ptr<c10d::Store> TcpStore::clone() {
  return c10::make_intrusive<TcpStore>(host_, port_, timeout_, server_);
}

void TcpStore::connect() {
  const auto start = steady_clock::now();
  const milliseconds one_attempt =
      timeout_ > timeout_.zero() ? timeout_ : milliseconds(60000);
  milliseconds pause{1};
  while ((socket_ = connect_to(host_, port_, one_attempt)) < 0) {
    if (timeout_ > timeout_.zero() && steady_clock::now() - start >= timeout_) {
      throw DistributedError(format(
          "[comm] no process listens at {}:{} after {} s; is rank 0 running, "
          "and is main_process_ip its address?",
          host_,
          port_,
          std::chrono::duration<double>(timeout_).count()));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, milliseconds(50));
  }
  const int on = 1;
  set_send_timeout(socket_, timeout_);
  ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(socket_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

void TcpStore::introduce() {
  const auto nonce = static_cast<std::uint32_t>(::getpid());
  send(StoreMessage(StoreQuery::validate).number(kStoreMagic).bytes());
  send(StoreMessage(StoreQuery::ping).number(nonce).bytes());
  if (receive<std::uint32_t>() != nonce) give_up("gave a wrong answer");
}

void TcpStore::give_up(const std::string& problem) {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
  C10_THROW_ERROR(
      DistNetworkError, format("the store at {}:{} {}", host_, port_, problem));
}

void TcpStore::send(const std::string& message) {
  if (socket_ < 0) give_up("can no longer be used after an earlier failure");
  if (!send_all(socket_, message.data(), message.size()))
    give_up(format("closed the connection ({})", std::strerror(errno)));
}

bool TcpStore::can_receive(milliseconds timeout) const {
  const auto deadline = steady_clock::now() + timeout;
  pollfd wait{socket_, POLLIN, 0};
  while (true) {
    int pause = -1;
    if (timeout > timeout.zero()) {
      const auto left =
          std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
      pause = static_cast<int>(std::clamp<std::int64_t>(
          left.count(), 0, std::numeric_limits<int>::max()));
    }
    const int ready = ::poll(&wait, 1, pause);
    if (ready > 0) return true;
    if (ready == 0 && steady_clock::now() >= deadline) return false;
    if (ready < 0 && errno != EINTR) return true;  // receiving says why
  }
}

void TcpStore::receive(void* into, std::size_t size) {
  auto* const bytes = static_cast<char*>(into);
  std::size_t arrived = 0;
  while (arrived < size) {
    if (!can_receive(timeout_)) {
      give_up(format(
          "has not answered for {} s",
          std::chrono::duration<double>(timeout_).count()));
    }
    const ssize_t count = ::recv(socket_, bytes + arrived, size - arrived, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) give_up("closed the connection");
    if (count < 0)
      give_up(format("closed the connection ({})", std::strerror(errno)));
    arrived += static_cast<std::size_t>(count);
  }
}

template <class T>
T TcpStore::receive() {
  T value{};
  receive(&value, sizeof value);
  return value;
}

Value TcpStore::receive_value() {
  const auto size = receive<std::uint64_t>();
  if (size > StoreLimits{}.max_message_bytes)
    give_up(format("announced a value of {} bytes", size));
  Value value(static_cast<std::size_t>(size));
  receive(value.data(), value.size());
  return value;
}

void TcpStore::await_keys(
    const std::vector<std::string>& keys,
    milliseconds timeout) {
  send(StoreMessage(StoreQuery::wait).keys(keys).bytes());
  if (!can_receive(timeout)) {
    send(StoreMessage(StoreQuery::cancel_wait).bytes());
    // The keys may have arrived at the last moment; the answer to the
    // cancellation follows.
    if (receive<StoreAnswer>() == StoreAnswer::stop_waiting)
      (void)receive<StoreAnswer>();
    C10_THROW_ERROR(
        DistStoreError,
        format(
            "wait timeout after {}ms, keys: {}",
            timeout.count(),
            names_of(keys)));
  }
  if (receive<StoreAnswer>() != StoreAnswer::stop_waiting)
    give_up("gave a wrong answer");
}

void TcpStore::set(const std::string& key, const Value& value) {
  const std::lock_guard lock(mutex_);
  send(StoreMessage(StoreQuery::set).key(key).value(value).bytes());
}

Value TcpStore::compareSet(
    const std::string& key,
    const Value& expected,
    const Value& desired) {
  const std::lock_guard lock(mutex_);
  send(StoreMessage(StoreQuery::compare_set)
           .key(key)
           .value(expected)
           .value(desired)
           .bytes());
  return receive_value();
}

Value TcpStore::get(const std::string& key) {
  const std::lock_guard lock(mutex_);
  await_keys({key}, timeout_);
  send(StoreMessage(StoreQuery::get).key(key).bytes());
  return receive_value();
}

std::int64_t TcpStore::add(const std::string& key, std::int64_t amount) {
  const std::lock_guard lock(mutex_);
  send(StoreMessage(StoreQuery::add).key(key).number(amount).bytes());
  return receive<std::int64_t>();
}

bool TcpStore::deleteKey(const std::string& key) {
  const std::lock_guard lock(mutex_);
  send(StoreMessage(StoreQuery::delete_key).key(key).bytes());
  return receive<std::int64_t>() == 1;
}

bool TcpStore::check(const std::vector<std::string>& keys) {
  const std::lock_guard lock(mutex_);
  send(StoreMessage(StoreQuery::check).keys(keys).bytes());
  return receive<StoreAnswer>() == StoreAnswer::ready;
}

std::int64_t TcpStore::getNumKeys() {
  const std::lock_guard lock(mutex_);
  send(StoreMessage(StoreQuery::num_keys).bytes());
  return receive<std::int64_t>();
}

void TcpStore::wait(const std::vector<std::string>& keys) {
  wait(keys, timeout_);
}

void TcpStore::wait(
    const std::vector<std::string>& keys,
    const milliseconds& timeout) {
  const std::lock_guard lock(mutex_);
  await_keys(keys, timeout);
}

void TcpStore::append(const std::string& key, const Value& value) {
  const std::lock_guard lock(mutex_);
  send(StoreMessage(StoreQuery::append).key(key).value(value).bytes());
}

std::vector<Value> TcpStore::multiGet(const std::vector<std::string>& keys) {
  const std::lock_guard lock(mutex_);
  await_keys(keys, timeout_);
  send(StoreMessage(StoreQuery::multi_get).keys(keys).bytes());
  std::vector<Value> values;
  values.reserve(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i)
    values.push_back(receive_value());
  return values;
}

void TcpStore::multiSet(
    const std::vector<std::string>& keys,
    const std::vector<Value>& values) {
  TORCH_CHECK(
      keys.size() == values.size(),
      "multiSet: ",
      keys.size(),
      " keys and ",
      values.size(),
      " values");
  StoreMessage message(StoreQuery::multi_set);
  message.number(static_cast<std::uint64_t>(keys.size()));
  for (std::size_t i = 0; i < keys.size(); ++i)
    message.key(keys[i]).value(values[i]);
  const std::lock_guard lock(mutex_);
  send(message.bytes());
}

}  // namespace accelerate::detail
