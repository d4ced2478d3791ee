#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/store_protocol.h"
#include "launch/store_request.h"
#include "launch/store_values.h"

namespace accelerate::detail {

/// A store's state of one connection.
class StoreSession {
 public:
  /// `is_trusted` is called if the client's first request does not show the
  /// secret.
  StoreSession(const StoreLimits& limits, std::function<bool()> is_trusted)
      : reader_(limits), is_trusted_(std::move(is_trusted)) {}
  StoreSession(const StoreSession&) = delete;
  StoreSession& operator=(const StoreSession&) = delete;

  /// Answers that have not been sent yet.
  [[nodiscard]] std::string_view unsent() const {
    return std::string_view(unsent_).substr(num_sent_);
  }
  void mark_sent(std::size_t num_bytes);
  /// False while received messages wait for answers to be sent.
  [[nodiscard]] bool wants_input() const { return arrived_.empty(); }
  [[nodiscard]] bool is_admitted() const { return is_admitted_; }
  /// Whether this is the launcher of another machine.
  [[nodiscard]] bool has_joined() const { return machine_ > 0; }
  /// Admits the client before its first request if it is trusted. Returns
  /// whether it is admitted.
  [[nodiscard]] bool admit_if_trusted();

 private:
  friend class StoreService;

  template <class T>
  void answer(T value) {
    unsent_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void answer_text(std::string_view text) {
    answer(static_cast<std::uint64_t>(text.size()));
    unsent_ += text;
  }
  [[nodiscard]] std::uint64_t memory() const {
    return reader_.memory() + arrived_.capacity() + unsent_.capacity() +
        awaited_memory_;
  }

  StoreRequestReader reader_;
  std::function<bool()> is_trusted_;
  bool is_valid_ = false;  // has sent the magic number
  bool is_admitted_ = false;
  int machine_ = 0;
  std::string arrived_;
  std::string unsent_;
  std::size_t num_sent_ = 0;
  std::vector<std::string> awaited_;  // the last one is still missing
  std::uint64_t awaited_memory_ = 0;
  std::uint64_t accounted_ = 0;
};

/// Returns the key of a machine's connection, relative to the secret's prefix.
/// It does not exist before the first launcher has joined.
std::string connection_key(int machine);

/// The store without its sockets: takes clients' bytes, holds the values, and
/// makes answers. Not thread-safe.
///
/// With a secret, a client cannot read or write anything until it is admitted:
/// by a first key that begins with "/SECRET/", which a c10d::PrefixStore over
/// an unmodified client gives to every connection and its clones; by joining;
/// or by being trusted. Until then the session holds at most one key.
///
/// The value of key connection_key(K) is 1 or 0: whether the launcher of
/// machine K is connected.
class StoreService {
 public:
  struct Options {
    StoreLimits limits = {};
    /// Empty: all clients are admitted.
    std::string secret = {};
    /// Above 1, each machine but the first can join, one launcher at a time.
    int num_machines = 1;
    /// True if joining launchers must know the secret; if false, they are told.
    bool is_secret_shared = false;
  };

  explicit StoreService(Options options) : options_(std::move(options)) {}
  StoreService(const StoreService&) = delete;
  StoreService& operator=(const StoreService&) = delete;

  /// `session` must be closed before it is destroyed.
  void open(StoreSession& session) { sessions_.push_back(&session); }
  /// A no-op if the session is already closed.
  void close(StoreSession& session);

  /// Takes received bytes, and answers the messages that they complete. May
  /// also add answers to other sessions that waited for a key. Throws
  /// StoreRefusal or std::bad_alloc if the session must be closed; the others
  /// and the values are then as the last complete request left them.
  void receive(StoreSession& session, std::string_view bytes);
  /// Continues with messages that waited for answers to be sent.
  void resume(StoreSession& session);

  [[nodiscard]] std::size_t num_keys() const { return values_.size(); }
  /// Bytes of memory held for values and sessions.
  [[nodiscard]] std::uint64_t memory() const {
    return values_.memory() + session_memory_;
  }

 private:
  void account(StoreSession& session);
  void require_room(std::uint64_t num_bytes) const;
  void admit(StoreSession& session) const;
  void answer(StoreSession& session, StoreRequest& request);
  static void validate(StoreSession& session, const StoreRequest& request);
  void join(StoreSession& session, const StoreRequest& request);
  void note_connection(int machine, bool is_there);
  void add(StoreSession& session, StoreRequest& request);
  void append(const StoreRequest& request);
  void compare_set(StoreSession& session, StoreRequest& request);
  void wait(StoreSession& session, StoreRequest& request);
  void check(StoreSession& session, const StoreRequest& request) const;
  void get_all(StoreSession& session, const std::vector<std::string>& keys);
  [[nodiscard]] std::string_view value_of(const std::string& key) const;
  [[nodiscard]] bool is_still_missing(std::vector<std::string>& keys) const;
  void wake_waiting();
  [[nodiscard]] bool shows_secret(std::string_view key) const;
  [[nodiscard]] std::string shown(std::string_view key) const;

  Options options_;
  StoreValues values_;
  std::vector<StoreSession*> sessions_;
  std::uint64_t session_memory_ = 0;
};

}  // namespace accelerate::detail
