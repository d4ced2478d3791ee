#include "server.h"

#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <httplib.h>
#include <nlohmann/json.hpp>

namespace {

using nlohmann::json;

constexpr int kBadRequest = 400;
constexpr int kUnavailable = 503;
constexpr const char* kJsonType = "application/json";

[[noreturn]] void fail(const std::string& sentence) {
  throw std::invalid_argument(sentence);
}

// Printing lists recurses once per level, of which a request may have millions.
std::string shown(const json& value) {
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  return value.dump();
}

std::int64_t integer_of(const json& value, const std::string& name) {
  const auto most = std::numeric_limits<std::int64_t>::max();
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() &&
       value.get<std::uint64_t>() > static_cast<std::uint64_t>(most)))
    fail(name + " must be an integer, but is " + shown(value));
  return value.get<std::int64_t>();
}

double number_of(const json& value, const std::string& name) {
  if (!value.is_number())
    fail(name + " must be a number, but is " + shown(value));
  return value.get<double>();
}

std::vector<std::int64_t> integers_of(
    const json& value,
    const std::string& name) {
  if (!value.is_array()) fail(name + " must be a list of integers");
  std::vector<std::int64_t> numbers;
  for (const json& each : value)
    numbers.push_back(integer_of(each, "each of " + name));
  return numbers;
}

struct WebRequest {
  GenerationRequest generation;
  bool stream = false;
};

WebRequest parse(const std::string& body) {
  const json fields = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!fields.is_object()) fail("the body must be a JSON object");
  WebRequest request;
  GenerationRequest& wanted = request.generation;
  using Field = std::function<void(const json&, const std::string&)>;
  const std::map<std::string, Field> known = {
      {"tokens",
       [&](const json& value, const std::string& name) {
         wanted.tokens = integers_of(value, name);
       }},
      {"max_new_tokens",
       [&](const json& value, const std::string& name) {
         wanted.max_new_tokens = integer_of(value, name);
       }},
      {"temperature",
       [&](const json& value, const std::string& name) {
         wanted.sampling.temperature = number_of(value, name);
       }},
      {"top_k",
       [&](const json& value, const std::string& name) {
         wanted.sampling.top_k = integer_of(value, name);
       }},
      {"top_p",
       [&](const json& value, const std::string& name) {
         wanted.sampling.top_p = number_of(value, name);
       }},
      {"seed",
       [&](const json& value, const std::string& name) {
         wanted.sampling.seed =
             static_cast<std::uint64_t>(integer_of(value, name));
       }},
      {"stop_tokens",
       [&](const json& value, const std::string& name) {
         wanted.stop_tokens = integers_of(value, name);
       }},
      {"stream", [&](const json& value, const std::string& name) {
         if (!value.is_boolean())
           fail(name + " must be true or false, but is " + shown(value));
         request.stream = value.get<bool>();
       }}};
  for (const auto& [name, value] : fields.items()) {
    const auto field = known.find(name);
    if (field == known.end()) {
      std::string names;
      for (const auto& [each, read] : known)
        names += (names.empty() ? "" : ", ") + each;
      fail("fields must be " + names + ", but one is '" + name + "'");
    }
    field->second(value, name);
  }
  return request;
}

// Invalid UTF-8 of a request, which an error repeats, is replaced.
std::string text_of(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

void answer(httplib::Response& response, int status, const json& value) {
  response.status = status;
  response.set_content(text_of(value) + "\n", kJsonType);
}

void answer_at_once(httplib::Response& response, Generation& generation) {
  std::vector<std::int64_t> tokens;
  while (const auto token = generation.next()) tokens.push_back(*token);
  answer(
      response,
      200,
      {{"tokens", tokens}, {"finish_reason", generation.finish_reason()}});
}

void answer_with_stream(
    httplib::Response& response,
    const std::shared_ptr<Generation>& generation) {
  response.set_header("Cache-Control", "no-store");
  response.set_chunked_content_provider(
      "text/event-stream",
      [generation](std::size_t, httplib::DataSink& sink) {
        const auto token = generation->next();
        const json event = token
            ? json{{"token", *token}}
            : json{{"finish_reason", generation->finish_reason()}};
        const std::string text = "data: " + text_of(event) + "\n\n";
        const bool is_sent = sink.write(text.data(), text.size());
        if (!token) sink.done();
        return is_sent;
      },
      // Also called when the client has gone.
      [generation](bool) { generation->cancel(); });
}

}  // namespace

class Server::Impl {
 public:
  Impl(Engine& engine, const ServerOptions& options) : engine_(engine) {
    bind(options);
    server_.Post(
        "/generate",
        [this](const httplib::Request& request, httplib::Response& response) {
          generate(request, response);
        });
    server_.Get("/health", [](const auto&, httplib::Response& response) {
      answer(response, 200, {{"status", "ok"}});
    });
    listener_ = std::thread([this] { server_.listen_after_bind(); });
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    engine_.stop();
    // stop() has no effect before the listener has started.
    while (!server_.is_running()) std::this_thread::yield();
    server_.stop();
    listener_.join();
  }

  int port_ = 0;

 private:
  void bind(const ServerOptions& options) {
    const std::size_t num_threads = options.num_threads;
    server_.new_task_queue = [num_threads] {
      return new httplib::ThreadPool(num_threads);
    };
    server_.set_payload_max_length(options.max_body_bytes);
    // An idle connection would hold a thread, also at the end.
    server_.set_keep_alive_max_count(1);
    server_.set_tcp_nodelay(true);
    // The library's default lets other programs listen on the same port.
    server_.set_socket_options([](auto socket) {
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    const char* const host = options.host.c_str();
    port_ = options.port == 0
        ? server_.bind_to_any_port(host)
        : (server_.bind_to_port(host, options.port) ? options.port : -1);
    if (port_ <= 0)
      throw std::runtime_error(
          "port " + std::to_string(options.port) + " of " + options.host +
          " cannot be used");
  }

  void generate(const httplib::Request& request, httplib::Response& response) {
    try {
      WebRequest wanted = parse(request.body);
      const auto generation = engine_.submit(std::move(wanted.generation));
      if (wanted.stream) {
        answer_with_stream(response, generation);
      } else {
        answer_at_once(response, *generation);
      }
    } catch (const std::invalid_argument& error) {
      answer(response, kBadRequest, {{"error", error.what()}});
    } catch (const Busy& error) {
      answer(response, kUnavailable, {{"error", error.what()}});
    }
  }

  Engine& engine_;
  httplib::Server server_;
  std::thread listener_;
};

Server::Server(Engine& engine, const ServerOptions& options)
    : impl_(std::make_unique<Impl>(engine, options)) {}

Server::~Server() = default;

int Server::port() const { return impl_->port_; }
