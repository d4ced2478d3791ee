#include "cli/watch/web/page_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace accelerate::cli {
namespace page_server_test {

// A connection that sends what the test says.
class Raw {
 public:
  explicit Raw(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(
        ::connect(
            socket_, reinterpret_cast<sockaddr*>(&address), sizeof address),
        0)
        << std::strerror(errno);
  }
  Raw(const Raw&) = delete;
  Raw& operator=(const Raw&) = delete;
  ~Raw() { ::close(socket_); }

  bool send(const std::string& text) const {
    return ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL) ==
        static_cast<ssize_t>(text.size());
  }
  // What the server sends until it ends the connection.
  [[nodiscard]] std::string rest() const {
    std::string text;
    std::array<char, 1000> bytes{};
    for (ssize_t num = 0;
         (num = ::recv(socket_, bytes.data(), bytes.size(), 0)) > 0;)
      text.append(bytes.data(), static_cast<std::size_t>(num));
    return text;
  }
  [[nodiscard]] std::string some() const {
    std::array<char, 1000> bytes{};
    const ssize_t num = ::recv(socket_, bytes.data(), bytes.size(), 0);
    return {bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(num, 0))};
  }

 private:
  int socket_;
};

class Page : public ::testing::Test {
 protected:
  void serve(const PageServerLimits& limits = {}) {
    server_ = std::make_unique<PageServer>(limits);
    server_->set_tcp_nodelay(true);
    server_->Get("/", [](const auto&, httplib::Response& response) {
      response.set_content("here", "text/plain");
    });
    server_->Get("/stream", [this](const auto&, httplib::Response& response) {
      if (!server_->begin_stream()) {
        response.status = 503;
        return;
      }
      response.set_chunked_content_provider(
          "text/plain",
          [this](std::size_t, httplib::DataSink& sink) {
            sink.write("begun", 5);
            has_ended_.wait(false);
            return false;
          },
          [this](bool) { server_->end_stream(); });
    });
    port_ = server_->bind_to_any_port("127.0.0.1");
    ASSERT_GT(port_, 0);
    server_->lengthen_queue();
    thread_ = std::thread([this] { server_->listen_after_bind(); });
  }
  ~Page() override {
    if (!server_) return;
    has_ended_ = true;
    has_ended_.notify_all();
    while (!server_->is_running()) std::this_thread::yield();
    server_->stop();
    server_->close_waiting();
    thread_.join();
  }
  [[nodiscard]] std::string get() const {
    const auto result = httplib::Client("127.0.0.1", port_).Get("/");
    return result ? result->body : "nothing";
  }

  std::unique_ptr<PageServer> server_;
  int port_ = 0;
  std::thread thread_;
  std::atomic<bool> has_ended_ = false;
};

TEST_F(Page, HoldsManyConnectionsThatItHasNotAcceptedYet) {
  server_ = std::make_unique<PageServer>();
  port_ = server_->bind_to_any_port("127.0.0.1");
  ASSERT_GT(port_, 0);
  server_->lengthen_queue();
  std::vector<std::unique_ptr<Raw>> connections;
  for (int i = 0; i < 100; ++i)
    connections.push_back(std::make_unique<Raw>(port_));
  thread_ = std::thread([this] { server_->listen_after_bind(); });
}

TEST_F(Page, AnswersSeveralRequestsOfAConnection) {
  serve();
  httplib::Client client("127.0.0.1", port_);
  client.set_keep_alive(true);
  for (int i = 0; i < 250; ++i) {
    const auto result = client.Get("/");
    ASSERT_TRUE(result) << i;
    ASSERT_EQ(result->body, "here");
  }
  const Raw both(port_);
  ASSERT_TRUE(
      both.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n"
                "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
  const std::string answers = both.rest();
  EXPECT_NE(answers.find("here"), answers.rfind("here"));
}

// Every client's time begins when it connects, however little it sends.
TEST_F(Page, AnswersWhileOthersDripTheirRequests) {
  serve();
  std::vector<std::unique_ptr<Raw>> dripping;
  for (int i = 0; i < 100; ++i) {
    dripping.push_back(std::make_unique<Raw>(port_));
    dripping.back()->send("GET / HTTP/1.1\r\nX: ");
  }
  std::atomic<bool> has_answer = false;
  std::thread drip([&] {
    while (!has_answer) {
      for (const auto& each : dripping) each->send("x");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  EXPECT_EQ(get(), "here");
  EXPECT_EQ(get(), "here");
  has_answer = true;
  drip.join();
}

TEST_F(Page, EndsARequestThatTakesTooLong) {
  serve({.head_time = std::chrono::milliseconds(50)});
  const Raw dripping(port_);
  std::atomic<bool> has_ended = false;
  std::thread drip([&] {
    while (!has_ended && dripping.send("x")) std::this_thread::yield();
  });
  (void)dripping.rest();
  has_ended = true;
  drip.join();
  const Raw silent(port_);
  EXPECT_EQ(silent.rest(), "");
  EXPECT_EQ(get(), "here");
}

TEST_F(Page, ReadsNoHeadsWithoutEnd) {
  serve({.most_head_bytes = 2000});
  const Raw client(port_);
  client.send("GET / HTTP/1.1\r\n");
  for (int i = 0; i < 1000; ++i) {
    if (!client.send("X: " + std::string(100, 'x') + "\r\n")) break;
  }
  client.send("\r\n");
  EXPECT_EQ(client.rest().find("here"), std::string::npos);
  EXPECT_EQ(get(), "here");
}

TEST_F(Page, AnswersBesideItsStreams) {
  serve({.most_streams = 40});
  std::vector<std::unique_ptr<Raw>> streams;
  const std::string request = "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n";
  for (int i = 0; i < 40; ++i) {
    streams.push_back(std::make_unique<Raw>(port_));
    streams.back()->send(request);
    EXPECT_TRUE(streams.back()->some().starts_with("HTTP/1.1 200"));
  }
  EXPECT_EQ(get(), "here");
  const Raw another(port_);
  another.send(request);
  EXPECT_TRUE(another.some().starts_with("HTTP/1.1 503"));
}

}  // namespace page_server_test
}  // namespace accelerate::cli
