#include "launch/store_service.h"

#include <algorithm>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// A client's messages wait while more than this much of its answers is unread,
// so that answers cannot pile up.
constexpr std::size_t kMostUnsentBytes = 64U << 10U;

// Takes the same time wherever the strings differ.
bool is_equal_secret(std::string_view given, std::string_view secret) {
  if (given.size() != secret.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < secret.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^
        static_cast<unsigned char>(secret[i]);
  }
  return difference == 0;
}

bool needs_admission(StoreQuery query) {
  return query != StoreQuery::validate && query != StoreQuery::ping &&
      query != StoreQuery::join;
}

}  // namespace

std::string connection_key(int machine) {
  return format("accelerate-cpp/connected/{}", machine);
}

void StoreSession::mark_sent(std::size_t num_bytes) {
  num_sent_ += num_bytes;
  if (num_sent_ < unsent_.size()) return;
  num_sent_ = 0;
  if (unsent_.size() > kMostUnsentBytes) {
    unsent_ = std::string();
  } else {
    unsent_.clear();
  }
}

bool StoreSession::admit_if_trusted() {
  is_admitted_ = is_admitted_ || is_trusted_();
  return is_admitted_;
}

void StoreService::close(StoreSession& session) {
  std::erase(sessions_, &session);
  session_memory_ -= std::exchange(session.accounted_, 0);
  if (session.machine_ > 0)
    note_connection(std::exchange(session.machine_, 0), false);
}

void StoreService::note_connection(int machine, bool is_there) {
  values_.set(
      format("/{}/{}", options_.secret, connection_key(machine)),
      is_there ? "1" : "0");
}

void StoreService::receive(StoreSession& session, std::string_view bytes) {
  require_room(bytes.size());
  session.arrived_.append(bytes);
  resume(session);
}

void StoreService::resume(StoreSession& session) {
  const std::string_view arrived = session.arrived_;
  std::size_t used = 0;
  while (used < arrived.size() && session.unsent().size() <= kMostUnsentBytes) {
    used += session.reader_.read(arrived.substr(used));
    admit(session);
    account(session);
    require_room(0);
    if (!session.reader_.is_complete()) continue;
    answer(session, session.reader_.request());
    session.reader_.start_next();
  }
  session.arrived_.erase(0, used);
  account(session);
}

void StoreService::account(StoreSession& session) {
  const std::uint64_t memory = session.memory();
  session_memory_ += memory - session.accounted_;
  session.accounted_ = memory;
}

void StoreService::require_room(std::uint64_t num_bytes) const {
  if (memory() + num_bytes <= options_.limits.max_total_bytes) return;
  throw StoreRefusal(format(
      "requested more memory than is left of the store's limit of {} bytes",
      options_.limits.max_total_bytes));
}

bool StoreService::shows_secret(std::string_view key) const {
  const std::size_t size = options_.secret.size();
  return key.size() >= size + 2 && key.front() == '/' && key[size + 1] == '/' &&
      is_equal_secret(key.substr(1, size), options_.secret);
}

// Throws unless the client may make the request. Does nothing before the first
// key has arrived.
void StoreService::admit(StoreSession& session) const {
  StoreRequestReader& reader = session.reader_;
  const StoreRequest& request = reader.request();
  if (!reader.has_key() && !reader.is_complete()) return;
  if (!session.is_valid_ && request.query != StoreQuery::validate)
    throw StoreRefusal("does not speak the store's protocol");
  if (session.is_admitted_ || !needs_admission(request.query)) return;
  session.is_admitted_ = options_.secret.empty() ||
      (reader.has_key() && shows_secret(request.strings.front())) ||
      session.is_trusted_();
  if (!session.is_admitted_) {
    throw StoreRefusal(
        "did not present the secret of this launch, and is not a process of "
        "this user on one of its machines");
  }
}

void StoreService::answer(StoreSession& session, StoreRequest& request) {
  const std::size_t num_keys = values_.size();
  switch (request.query) {
    case StoreQuery::validate:
      return validate(session, request);
    case StoreQuery::ping:
      return session.answer(static_cast<std::uint32_t>(request.number));
    case StoreQuery::join:
      return join(session, request);
    case StoreQuery::set:
    case StoreQuery::multi_set:
      values_.set_all(std::move(request.strings));
      break;
    case StoreQuery::compare_set:
      compare_set(session, request);
      break;
    case StoreQuery::add:
      add(session, request);
      break;
    case StoreQuery::append:
      append(request);
      break;
    case StoreQuery::get:
    case StoreQuery::multi_get:
      return get_all(session, request.strings);
    case StoreQuery::check:
      return check(session, request);
    case StoreQuery::wait:
      return wait(session, request);
    case StoreQuery::cancel_wait:
      session.awaited_ = {};
      session.awaited_memory_ = 0;
      return session.answer(StoreAnswer::wait_canceled);
    case StoreQuery::num_keys:
      return session.answer(static_cast<std::int64_t>(num_keys));
    case StoreQuery::delete_key:
      return session.answer(
          static_cast<std::int64_t>(values_.erase(request.strings[0])));
  }
  if (values_.size() > num_keys) wake_waiting();
}

void StoreService::validate(
    StoreSession& session,
    const StoreRequest& request) {
  if (request.number != kStoreMagic)
    throw StoreRefusal("does not speak the store's protocol");
  session.is_valid_ = true;
}

void StoreService::join(StoreSession& session, const StoreRequest& request) {
  const std::string& given = request.strings[0];
  const std::int64_t machine = request.number;
  if (machine < 1 || machine >= options_.num_machines) {
    throw StoreRefusal(format(
        "asked to join as machine {}; this launch has machines 0 to {}",
        machine,
        options_.num_machines - 1));
  }
  const bool is_right = options_.is_secret_shared
      ? is_equal_secret(given, options_.secret)
      : given.empty();
  const bool is_taken = std::ranges::any_of(
      sessions_,
      [&](const StoreSession* other) { return other->machine_ == machine; });
  if (!is_right || is_taken) {
    session.answer(
        is_right ? StoreJoinAnswer::machine_taken
                 : StoreJoinAnswer::wrong_secret);
    session.answer_text("");
    return;
  }
  session.machine_ = static_cast<int>(machine);
  session.is_admitted_ = true;
  note_connection(session.machine_, true);
  session.answer(StoreJoinAnswer::admitted);
  session.answer_text(options_.secret);
}

// Sums wrap around, as two's complement does.
void StoreService::add(StoreSession& session, StoreRequest& request) {
  std::string& key = request.strings[0];
  const std::string* const found = values_.find(key);
  std::int64_t before = 0;
  if (found != nullptr && !found->empty()) {
    const auto number = parse_int(*found);
    if (!number) {
      throw StoreRefusal(format(
          "added to the key \"{}\", whose value is not a number", shown(key)));
    }
    before = *number;
  }
  const auto sum = static_cast<std::int64_t>(
      static_cast<std::uint64_t>(before) +
      static_cast<std::uint64_t>(request.number));
  values_.set(std::move(key), std::to_string(sum));
  session.answer(sum);
}

void StoreService::append(const StoreRequest& request) {
  const std::string& key = request.strings[0];
  const std::string& more = request.strings[1];
  if (value_of(key).size() + more.size() > options_.limits.max_message_bytes) {
    throw StoreRefusal(format(
        "appended to the key \"{}\" until its value has more than {} bytes, "
        "the most that the store accepts",
        shown(key),
        options_.limits.max_message_bytes));
  }
  values_.append(key, more);
}

// As in LibTorch, an empty expected value matches a missing key.
void StoreService::compare_set(StoreSession& session, StoreRequest& request) {
  std::string& key = request.strings[0];
  const std::string& expected = request.strings[1];
  std::string& desired = request.strings[2];
  const std::string* const found = values_.find(key);
  if (found == nullptr && !expected.empty()) {
    session.answer_text(expected);
  } else if (found != nullptr && *found != expected) {
    require_room(found->size());
    session.answer_text(*found);
  } else {
    require_room(desired.size());
    session.answer_text(desired);
    values_.set(std::move(key), std::move(desired));
  }
}

void StoreService::wait(StoreSession& session, StoreRequest& request) {
  const std::uint64_t memory = session.reader_.memory();
  session.awaited_ = std::move(request.strings);
  if (is_still_missing(session.awaited_)) {
    session.awaited_memory_ = memory;
  } else {
    session.awaited_memory_ = 0;
    session.answer(StoreAnswer::stop_waiting);
  }
}

void StoreService::check(StoreSession& session, const StoreRequest& request)
    const {
  const bool has_all = std::ranges::all_of(
      request.strings,
      [&](const std::string& key) { return values_.contains(key); });
  session.answer(has_all ? StoreAnswer::ready : StoreAnswer::not_ready);
}

void StoreService::get_all(
    StoreSession& session,
    const std::vector<std::string>& keys) {
  std::uint64_t size = 0;
  for (const std::string& key : keys) {
    size += sizeof(std::uint64_t) + value_of(key).size();
  }
  if (size > options_.limits.max_message_bytes + sizeof(std::uint64_t)) {
    throw StoreRefusal(format(
        "requested {} bytes of values, but the store sends at most {} at once",
        size,
        options_.limits.max_message_bytes));
  }
  require_room(size);
  session.unsent_.reserve(
      session.unsent_.size() + static_cast<std::size_t>(size));
  for (const std::string& key : keys) session.answer_text(value_of(key));
}

std::string_view StoreService::value_of(const std::string& key) const {
  const std::string* const found = values_.find(key);
  return found == nullptr ? std::string_view() : std::string_view(*found);
}

// Removes existing keys from the end of the list. Each key is checked once, or
// at every new key while it is the last.
bool StoreService::is_still_missing(std::vector<std::string>& keys) const {
  while (!keys.empty() && values_.contains(keys.back())) keys.pop_back();
  return !keys.empty();
}

void StoreService::wake_waiting() {
  for (StoreSession* const session : sessions_) {
    if (session->awaited_.empty() || is_still_missing(session->awaited_))
      continue;
    session->awaited_memory_ = 0;
    // One byte, which fits into a string that has been sent.
    session->answer(StoreAnswer::stop_waiting);
    account(*session);
  }
}

// Formats a key for the launcher's output: without secret, readable, short.
std::string StoreService::shown(std::string_view key) const {
  constexpr std::size_t kMostCharacters = 80;
  if (!options_.secret.empty() && shows_secret(key))
    key.remove_prefix(options_.secret.size() + 2);
  std::string text(key.substr(0, kMostCharacters));
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

}  // namespace accelerate::detail
