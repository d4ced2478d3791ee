#pragma once

#include <functional>
#include <string>
#include <thread>

namespace accelerate::testing {

/// Answers HTTP requests on a free port of this machine, one connection per
/// request, on a thread of its own.
class HttpServer {
 public:
  struct Request {
    std::string method, path, authorization, body;
  };
  struct Answer {
    int status = 200;
    std::string body = "{}";
  };
  using Handler = std::function<Answer(const Request&)>;

  /// `handler` is called on the server's thread.
  explicit HttpServer(Handler handler);
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;
  ~HttpServer();

  [[nodiscard]] std::string url() const;

 private:
  void serve();
  void answer(int connection) const;

  Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace accelerate::testing
