#include "cli/watch/web/web_server.h"

#include <sys/socket.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <thread>
#include <utility>

#include <httplib.h>

#include <accelerate/error.h>

#include "base/text/encoding.h"
#include "base/text/text.h"
#include "cli/watch/watched_runs.h"
#include "cli/watch/web/page.h"
#include "cli/watch/web/page_server.h"
#include "cli/watch/web/run_json.h"

namespace accelerate::cli {

namespace {

using detail::format;

constexpr int kForbidden = 403, kNotFound = 404, kUnavailable = 503;
constexpr std::size_t kMostColumns = 4000;
constexpr std::size_t kMostRankSamples = 300;
// A page that has missed more messages requests everything again.
constexpr std::size_t kMostMessages = 256;
constexpr auto kSilence = std::chrono::seconds(10);
constexpr const char* kJsonType = "application/json";

// Constant-time comparison.
bool is_same(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < one.size(); ++i)
    difference |= static_cast<unsigned>(one[i] ^ other[i]);
  return difference == 0;
}

std::optional<long long> number_of(
    const httplib::Request& request,
    const char* name) {
  return detail::parse_int(request.get_param_value(name));
}

CurveRequest curve_request(const httplib::Request& request) {
  CurveRequest wanted;
  if (const auto from = number_of(request, "from")) wanted.from = *from;
  if (const auto to = number_of(request, "to")) wanted.to = *to;
  if (const auto columns = number_of(request, "columns"); columns > 0)
    wanted.num_columns =
        std::min(static_cast<std::size_t>(*columns), kMostColumns);
  wanted.smoothing =
      detail::parse_double(request.get_param_value("smoothing")).value_or(0);
  return wanted;
}

// Sent uncompressed: the library would compress the body, which takes longer
// than sending it to a browser on this machine.
void answer_with(
    httplib::Response& response,
    std::string body,
    const std::string& type) {
  const std::size_t size = body.size();
  if (size == 0) {
    response.set_content(body, type);
    return;
  }
  response.set_content_provider(
      size,
      type,
      [body = std::move(body)](
          std::size_t offset, std::size_t length, httplib::DataSink& sink) {
        return sink.write(body.data() + offset, length);
      });
}

}  // namespace

/// Numbered messages to pages, each of which reads at its own pace.
class Messages {
 public:
  void add(std::string message) {
    const std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
    ++end_;
    if (messages_.size() > kMostMessages) messages_.pop_front();
    changed_.notify_all();
  }
  /// Pages have missed something.
  void miss() {
    const std::lock_guard lock(mutex_);
    messages_.clear();
    ++end_;
    changed_.notify_all();
  }
  void close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    changed_.notify_all();
  }
  [[nodiscard]] std::uint64_t end() const {
    const std::lock_guard lock(mutex_);
    return end_;
  }

  enum class Outcome { message, silence, missed, closed };
  /// Waits for the message after `cursor`, and advances `cursor` past it.
  Outcome next(std::uint64_t& cursor, std::string& message) {
    std::unique_lock lock(mutex_);
    const bool has_any = changed_.wait_for(
        lock, kSilence, [&] { return is_closed_ || cursor < end_; });
    if (is_closed_) return Outcome::closed;
    if (!has_any) return Outcome::silence;
    if (end_ - cursor > messages_.size()) {
      cursor = end_;
      return Outcome::missed;
    }
    message = messages_[messages_.size() - (end_ - cursor)];
    ++cursor;
    return Outcome::message;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> messages_;
  std::uint64_t end_ = 0;
  bool is_closed_ = false;
};

class WebServer::Impl {
 public:
  Impl(std::vector<std::string> paths, const WebServerOptions& options);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();

  int port_ = 0;
  const std::string token_ = detail::random_token();

 private:
  using Request = httplib::Request;
  using Response = httplib::Response;

  void bind(int port);
  void add_routes();
  bool refuses(const Request& request, Response& response) const;
  // A route whose answer is JSON about the requested run.
  template <class Answer>
  void add_run_route(const char* path, Answer answer);
  void answer_series(const Request& request, Response& response);
  void answer_body(const Request& request, Response& response);
  void answer_stream(Response& response);
  [[nodiscard]] const RunRecord* run_of(const Request& request) const;
  void look(int interval_ms);

  mutable std::shared_mutex mutex_;  // of runs_
  WatchedRuns runs_;
  Messages messages_;
  PageServer server_;
  std::mutex end_mutex_;
  std::condition_variable end_;
  bool is_ending_ = false;
  std::thread listener_;
  std::thread looker_;
};

WebServer::Impl::Impl(
    std::vector<std::string> paths,
    const WebServerOptions& options)
    : runs_(std::move(paths)) {
  runs_.update();
  bind(options.port);
  add_routes();
  listener_ = std::thread([this] { server_.listen_after_bind(); });
  looker_ =
      std::thread([this, interval = options.interval_ms] { look(interval); });
}

WebServer::Impl::~Impl() {
  {
    const std::lock_guard lock(end_mutex_);
    is_ending_ = true;
  }
  end_.notify_all();
  looker_.join();
  messages_.close();
  // stop() has no effect before the listener has started.
  while (!server_.is_running()) std::this_thread::yield();
  server_.stop();
  server_.close_waiting();
  listener_.join();
}

void WebServer::Impl::bind(int port) {
  // Answers are written in two pieces, the second of which would be delayed by
  // 40 ms.
  server_.set_tcp_nodelay(true);
  // The library's default lets other programs listen on the same port.
  server_.set_socket_options([](auto socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  const char* const host = "127.0.0.1";
  port_ = port == 0 ? server_.bind_to_any_port(host)
                    : (server_.bind_to_port(host, port) ? port : -1);
  if (port_ <= 0)
    throw ConfigError(format(
        "port {} cannot be used; pass another one with --port, or 0 for any",
        port));
  server_.lengthen_queue();
}

bool WebServer::Impl::refuses(const Request& request, Response& response)
    const {
  const std::string host = detail::to_lower(request.get_header_value("Host"));
  const std::string port = std::to_string(port_);
  bool is_ours = false;
  for (const char* name : {"127.0.0.1:", "localhost:"})
    is_ours = is_ours || host == name + port;
  if (is_ours && is_same(request.get_param_value("token"), token_))
    return false;
  response.status = kForbidden;
  response.set_content(
      is_ours ? "The address lacks the token that accelerate-cpp watch --web "
                "printed.\n"
              : "This server answers requests for 127.0.0.1 and localhost.\n",
      "text/plain");
  return true;
}

template <class Answer>
void WebServer::Impl::add_run_route(const char* path, Answer answer) {
  server_.Get(path, [=, this](const Request& request, Response& response) {
    const std::shared_lock lock(mutex_);
    const RunRecord* const run = run_of(request);
    if (run == nullptr) {
      response.status = kNotFound;
      return;
    }
    answer_with(response, answer(*run, request), kJsonType);
  });
}

void WebServer::Impl::add_routes() {
  server_.set_default_headers(
      {{"Cache-Control", "no-store"},
       {"X-Content-Type-Options", "nosniff"},
       {"X-Frame-Options", "DENY"},
       {"Referrer-Policy", "no-referrer"},
       {"Cross-Origin-Resource-Policy", "same-origin"}});
  server_.set_pre_routing_handler(
      [this](const Request& request, Response& response) {
        return refuses(request, response)
            ? httplib::Server::HandlerResponse::Handled
            : httplib::Server::HandlerResponse::Unhandled;
      });
  server_.Get("/", [this](const Request&, Response& response) {
    answer_with(
        response,
        make_page(format("{{\"token\":\"{}\"}}", token_)),
        "text/html; charset=utf-8");
  });
  server_.Get("/api/runs", [this](const Request&, Response& response) {
    const std::shared_lock lock(mutex_);
    std::vector<std::string> runs;
    for (std::size_t i = 0; i < runs_.runs().size(); ++i)
      runs.push_back(run_json(*runs_.runs()[i], i));
    answer_with(response, json_list(runs), kJsonType);
  });
  server_.Get("/api/series", [this](const Request& request, Response& out) {
    answer_series(request, out);
  });
  add_run_route("/api/run", [](const RunRecord& run, const Request& from) {
    return run_json(run, static_cast<std::size_t>(*number_of(from, "run")));
  });
  add_run_route("/api/system", [](const RunRecord& run, const Request& from) {
    return system_json(run, curve_request(from).num_columns);
  });
  add_run_route("/api/ranks", [](const RunRecord& run, const Request&) {
    return ranks_json(run, kMostRankSamples);
  });
  add_run_route("/api/events", [](const RunRecord& run, const Request&) {
    return events_json(run, false);
  });
  server_.Get("/api/body", [this](const Request& request, Response& out) {
    answer_body(request, out);
  });
  server_.Get("/api/stream", [this](const Request&, Response& response) {
    answer_stream(response);
  });
}

const RunRecord* WebServer::Impl::run_of(const Request& request) const {
  const auto index = number_of(request, "run");
  const auto& runs = runs_.runs();
  return index && *index >= 0 && *index < static_cast<long long>(runs.size())
      ? runs[static_cast<std::size_t>(*index)].get()
      : nullptr;
}

// The curves of one figure in several runs.
void WebServer::Impl::answer_series(
    const Request& request,
    Response& response) {
  const std::string name = request.get_param_value("name");
  const CurveRequest wanted = curve_request(request);
  std::vector<std::pair<std::string, std::string>> curves;
  const std::shared_lock lock(mutex_);
  for (const std::string& word :
       detail::split(request.get_param_value("runs"), ',')) {
    const auto index = detail::parse_int(word);
    if (!index || *index < 0 ||
        *index >= static_cast<long long>(runs_.runs().size()))
      continue;
    const RunRecord& run = *runs_.runs()[static_cast<std::size_t>(*index)];
    if (!run.series().contains(name)) continue;
    curves.emplace_back(std::to_string(*index), curve_json(run, name, wanted));
  }
  answer_with(response, json_object(curves), kJsonType);
}

// The body of an event. A picture may contain scripts, which must not run.
void WebServer::Impl::answer_body(const Request& request, Response& response) {
  const std::shared_lock lock(mutex_);
  const RunRecord* const run = run_of(request);
  const auto index = number_of(request, "event");
  if (run == nullptr || !index || *index < 0 ||
      *index >= static_cast<long long>(run->events().size())) {
    response.status = kNotFound;
    return;
  }
  const RunRecord::Event& event =
      run->events()[static_cast<std::size_t>(*index)];
  const std::string& type = event.event.media_type;
  const bool is_picture =
      type == detail::media_type::kPng || type == detail::media_type::kSvg;
  response.set_header(
      "Content-Security-Policy",
      "default-src 'none'; style-src 'unsafe-inline'; sandbox");
  answer_with(
      response,
      run->body_of(event),
      is_picture ? type : "text/plain; charset=utf-8");
}

void WebServer::Impl::answer_stream(Response& response) {
  if (!server_.begin_stream()) {
    response.status = kUnavailable;
    response.set_content("Too many pages are open.\n", "text/plain");
    return;
  }
  response.set_chunked_content_provider(
      "text/event-stream",
      [this, cursor = messages_.end(), is_first = true](
          std::size_t, httplib::DataSink& sink) mutable {
        std::string text = ": begun\n\n";
        if (!std::exchange(is_first, false)) {
          std::string message;
          switch (messages_.next(cursor, message)) {
            case Messages::Outcome::message:
              text = "event: changes\ndata: " + message + "\n\n";
              break;
            case Messages::Outcome::silence:
              text = ": still here\n\n";
              break;
            case Messages::Outcome::missed:
              text = "event: missed\ndata: {}\n\n";
              break;
            case Messages::Outcome::closed:
              return false;
          }
        }
        return sink.write(text.data(), text.size());
      },
      [this](bool) { server_.end_stream(); });
}

void WebServer::Impl::look(int interval_ms) {
  std::unique_lock end_lock(end_mutex_);
  auto pause = std::chrono::milliseconds(interval_ms);
  while (!end_.wait_for(end_lock, pause, [&] { return is_ending_; })) {
    std::string message;
    bool has_more = false;
    try {
      const std::unique_lock lock(mutex_);
      const std::vector<RunChange> changes = runs_.update();
      if (!changes.empty()) message = changes_json(runs_, changes);
      has_more = runs_.has_more();
    } catch (const std::exception&) {
      // Out of memory: pages request everything again.
      messages_.miss();
      continue;
    }
    if (!message.empty()) messages_.add(std::move(message));
    pause = std::chrono::milliseconds(has_more ? 0 : interval_ms);
  }
}

WebServer::WebServer(std::vector<std::string> paths, WebServerOptions options)
    : impl_(std::make_unique<Impl>(std::move(paths), options)) {}

WebServer::~WebServer() = default;

int WebServer::port() const { return impl_->port_; }

const std::string& WebServer::token() const { return impl_->token_; }

std::string WebServer::address() const {
  return format("http://127.0.0.1:{}/?token={}", port(), token());
}

}  // namespace accelerate::cli
