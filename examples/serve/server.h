#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "engine.h"

struct ServerOptions {
  std::string host = "127.0.0.1";
  /// 0 for any that is free.
  int port = 0;
  /// Connections that are answered at once; more wait.
  std::size_t num_threads = 128;
  std::size_t max_body_bytes = std::size_t{16} << 20U;
};

/// Answers HTTP requests with tokens of an engine:
///
///   POST /generate {"tokens": [1, 2], "max_new_tokens": 16, "stream": true,
///                   "temperature": 0.8, "top_k": 50, "top_p": 0.9, "seed": 1,
///                   "stop_tokens": [2]}
///
/// Only "tokens" is needed. The answer is {"tokens": [...], "finish_reason":
/// "length"}, or, with "stream", an event per token, data: {"token": 5}, and
/// one at the end, data: {"finish_reason": "length"}. Errors are {"error":
/// sentence}, with status 400 for a bad request and 503 for too many.
class Server {
 public:
  /// Throws std::runtime_error if the port cannot be used. The engine must
  /// outlive it.
  explicit Server(Engine& engine, const ServerOptions& options = {});
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  /// Stops the engine, so that open answers end.
  ~Server();

  [[nodiscard]] int port() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};
