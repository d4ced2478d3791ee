#pragma once

#include <memory>
#include <string>
#include <vector>

namespace accelerate::cli {

struct WebServerOptions {
  int port = 0;           ///< 0 for any that is free
  int interval_ms = 500;  ///< between looks at the journals
};

/// Serves the page about runs on the loopback interface, to clients that know
/// its address: it contains a random token, without which every request is
/// refused, as are requests for another host's name (DNS rebinding).
class WebServer {
 public:
  /// Reads the journals and starts serving. Throws ConfigError if there is no
  /// run, or the port is taken.
  WebServer(std::vector<std::string> paths, WebServerOptions options = {});
  WebServer(const WebServer&) = delete;
  WebServer& operator=(const WebServer&) = delete;
  ~WebServer();

  [[nodiscard]] int port() const;
  [[nodiscard]] const std::string& token() const;
  /// The address to open: http://127.0.0.1:PORT/?token=TOKEN
  [[nodiscard]] std::string address() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace accelerate::cli
