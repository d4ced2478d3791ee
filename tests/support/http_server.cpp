#include "support/http_server.h"

#include <array>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace accelerate::testing {

namespace {

std::string header(const std::string& head, const std::string& name) {
  const std::size_t at = head.find("\r\n" + name + ": ");
  if (at == std::string::npos) return "";
  const std::size_t begin = at + name.size() + 4;
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

bool read_more(int connection, std::string& text) {
  std::array<char, 4096> bytes{};
  const ssize_t count = ::recv(connection, bytes.data(), bytes.size(), 0);
  if (count <= 0) return false;
  text.append(bytes.data(), static_cast<std::size_t>(count));
  return true;
}

}  // namespace

HttpServer::HttpServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_, any, size) != 0 || ::listen(listener_, 8) != 0 ||
      ::getsockname(listener_, any, &size) != 0) {
    throw std::runtime_error("cannot listen");
  }
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { serve(); });
}

HttpServer::~HttpServer() {
  ::shutdown(listener_, SHUT_RDWR);
  thread_.join();
  ::close(listener_);
}

std::string HttpServer::url() const {
  return "http://127.0.0.1:" + std::to_string(port_);
}

void HttpServer::serve() {
  while (true) {
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) return;
    answer(connection);
    ::close(connection);
  }
}

void HttpServer::answer(int connection) const {
  std::string text;
  while (text.find("\r\n\r\n") == std::string::npos) {
    if (!read_more(connection, text)) return;
  }
  const std::size_t end = text.find("\r\n\r\n");
  const std::string head = text.substr(0, end + 2);
  Request request;
  request.method = head.substr(0, head.find(' '));
  const std::size_t path = request.method.size() + 1;
  request.path = head.substr(path, head.find(' ', path) - path);
  request.authorization = header(head, "Authorization");
  const auto length = static_cast<std::size_t>(
      std::atoll(header(head, "Content-Length").c_str()));
  if (header(head, "Expect") == "100-continue") {
    const std::string on = "HTTP/1.1 100 Continue\r\n\r\n";
    (void)!::send(connection, on.data(), on.size(), MSG_NOSIGNAL);
  }
  request.body = text.substr(end + 4);
  while (request.body.size() < length) {
    if (!read_more(connection, request.body)) return;
  }
  const Answer given = handler_(request);
  const std::string whole = "HTTP/1.1 " + std::to_string(given.status) +
      " x\r\nConnection: close\r\nContent-Length: " +
      std::to_string(given.body.size()) + "\r\n\r\n" + given.body;
  (void)!::send(connection, whole.data(), whole.size(), MSG_NOSIGNAL);
}

}  // namespace accelerate::testing
