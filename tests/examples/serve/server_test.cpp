// Requests over HTTP get the tokens that they would get alone.
#include "server.h"

#include <chrono>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <httplib.h>
#include <nlohmann/json.hpp>

#include "examples/serve/decoders.h"

namespace accelerate::testing::server_test {

using nlohmann::json;
using ::testing::HasSubstr;

class ServedModel : public ::testing::Test {
 protected:
  [[nodiscard]] httplib::Client client() const {
    httplib::Client client("127.0.0.1", server->port());
    client.set_read_timeout(std::chrono::minutes(2));
    return client;
  }
  [[nodiscard]] httplib::Result post(const std::string& body) const {
    return client().Post("/generate", body, "application/json");
  }
  [[nodiscard]] json body_of(std::size_t i, bool stream) const {
    return {
        {"tokens", record.prompts.at(i)},
        {"max_new_tokens", record.greedy.at(i).size()},
        {"stream", stream}};
  }
  // Tokens and the end of a streamed answer.
  [[nodiscard]] std::pair<Tokens, std::string> streamed(
      const json& body) const {
    const auto result = post(body.dump());
    if (!result || result->status != 200) return {{}, "no answer"};
    EXPECT_EQ(result->get_header_value("Content-Type"), "text/event-stream");
    Tokens tokens;
    std::string end;
    std::istringstream lines(result->body);
    for (std::string line; std::getline(lines, line);) {
      if (line.empty()) continue;
      EXPECT_TRUE(line.starts_with("data: ") && end.empty()) << line;
      const json event = json::parse(line.substr(6));
      if (event.contains("token")) {
        tokens.push_back(event["token"]);
      } else {
        end = event["finish_reason"];
      }
    }
    return {tokens, end};
  }

  RecordedGenerations record{"llama"};
  Engine engine{Decoder(program_path("llama"))};
  std::optional<Server> server{std::in_place, engine};
};

TEST_F(ServedModel, StreamsConcurrentRequestsTheirOwnTokens) {
  std::vector<std::thread> threads;
  std::vector<std::pair<Tokens, std::string>> found(record.prompts.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    threads.emplace_back([&, i] { found[i] = streamed(body_of(i, true)); });
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].first, record.greedy[i]) << i;
    EXPECT_EQ(found[i].second, "length");
  }
}

TEST_F(ServedModel, AnswersAtOnceWithoutStream) {
  json body = body_of(1, false);
  body["stop_tokens"] = {record.greedy[1].at(3)};
  const auto result = post(body.dump());
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 200);
  const json answer = json::parse(result->body);
  const auto& all = record.greedy[1];
  const Tokens expected(all.begin(), std::find(all.begin(), all.end(), all[3]));
  EXPECT_EQ(answer["tokens"].get<Tokens>(), expected);
  EXPECT_EQ(answer["finish_reason"], "stop");
}

TEST_F(ServedModel, RepeatsSampledTokensOfASeed) {
  json body = body_of(0, false);
  body.update(
      {{"temperature", 1.5}, {"top_k", 40}, {"top_p", 0.95}, {"seed", 7}});
  const auto first = post(body.dump());
  const auto second = post(body.dump());
  body["seed"] = 8;
  const auto other = post(body.dump());
  ASSERT_TRUE(first && second && other);
  EXPECT_EQ(first->body, second->body);
  EXPECT_NE(first->body, other->body);
}

TEST_F(ServedModel, AnswersBadRequestsWithASentence) {
  struct Case {
    std::string body;
    const char* sentence;
  };
  const std::string deep(1000000, '[');
  const Case cases[] = {
      {R"({"tokens": [1], "stream": )" + deep + std::string(1000000, ']') + "}",
       "stream must be true or false, but is a list"},
      {R"({"tokens": [{}]})", "must be an integer, but is an object"},
      {"", "the body must be a JSON object"},
      {"[1, 2]", "the body must be a JSON object"},
      {"{\"tokens\": [1", "the body must be a JSON object"},
      {"{}", "tokens must not be empty"},
      {R"({"tokens": 1})", "tokens must be a list of integers"},
      {R"({"tokens": [1, "a"]})",
       "each of tokens must be an integer, but is \\\"a\\\""},
      {R"({"tokens": [1.5]})", "each of tokens must be an integer"},
      {R"({"tokens": [18446744073709551615]})",
       "each of tokens must be an integer"},
      {R"({"tokens": [64]})", "tokens must be from 0 to 63, but one is 64"},
      {R"({"tokens": [1], "stream": 1})", "stream must be true or false"},
      {R"({"tokens": [1], "temperature": "hot"})",
       "temperature must be a number"},
      {R"({"tokens": [1], "top_p": 2})", "top_p must be above 0 and at most 1"},
      {R"({"tokens": [1], "max_tokens": 2})", "but one is 'max_tokens'"},
      {"{\"tokens\": [1], \"\xff\": 2}", "the body must be a JSON object"}};
  for (const Case& bad : cases) {
    const auto result = post(bad.body);
    ASSERT_TRUE(result) << bad.sentence;
    EXPECT_EQ(result->status, 400) << bad.sentence;
    EXPECT_THAT(result->body, HasSubstr(bad.sentence));
    EXPECT_TRUE(json::accept(result->body)) << result->body;
  }
}

TEST_F(ServedModel, RefusesBodiesThatAreTooLong) {
  server.emplace(engine, ServerOptions{.max_body_bytes = 100});
  const auto result = post(std::string(101, ' '));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 413);
}

TEST_F(ServedModel, GoesOnWhenAClientLeaves) {
  httplib::Request request;
  request.method = "POST";
  request.path = "/generate";
  request.body = R"({"tokens": [1], "max_new_tokens": 60, "stream": true})";
  request.content_receiver =
      [](const char*, std::size_t, std::uint64_t, std::uint64_t) {
        return false;
      };
  for (int i = 0; i < 6; ++i) EXPECT_FALSE(client().send(request));
  EXPECT_EQ(streamed(body_of(2, true)).first, record.greedy[2]);
}

TEST_F(ServedModel, EndsOpenAnswersWhenItIsClosed) {
  std::vector<std::thread> threads;
  std::vector<std::pair<Tokens, std::string>> found(10);
  std::atomic<int> num_begun = 0;
  for (auto& each : found)
    threads.emplace_back([&] {
      ++num_begun;
      each =
          streamed({{"tokens", {1}}, {"max_new_tokens", 60}, {"stream", true}});
    });
  while (num_begun < 10) std::this_thread::yield();
  server.reset();
  for (std::thread& thread : threads) thread.join();
  for (const auto& [tokens, end] : found)
    EXPECT_TRUE(end == "shutdown" || end == "no answer" || tokens.size() == 60U)
        << end;
}

TEST(Server, AnswersWith503WhenTooManyWait) {
  Engine engine(Decoder(program_path("llama")), {.max_waiting = 0});
  const Server server(engine);
  const auto result = httplib::Client("127.0.0.1", server.port())
                          .Post("/generate", R"({"tokens": [1]})", "");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 503);
  EXPECT_THAT(result->body, HasSubstr("requests may wait"));
}

TEST(Server, RefusesAPortThatIsTaken) {
  Engine engine(Decoder(program_path("llama")));
  const Server server(engine);
  EXPECT_THROW(Server(engine, {.port = server.port()}), std::runtime_error);
}

}  // namespace accelerate::testing::server_test
