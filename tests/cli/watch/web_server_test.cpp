#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/text/encoding.h"
#include "cli/run_journal.h"
#include "cli/watch/report_page.h"
#include "cli/watch/web/page.h"
#include "cli/watch/web/web_server.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::cli {
namespace web_server_test {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RunJournal;

class Web : public ::testing::Test {
 protected:
  Web() : journal_(directory_ / "a") {
    journal_.session(10, {.command = {"train"}, .host = "here"})
        .scalars(11, 0, {{"loss", 4}})
        .scalars(12, 1, {{"loss", 2}})
        .event(12, 1, detail::image_event("samples", 3, "\x89PNG"))
        .event(12, 1, detail::text_event("note", "</script><b>"))
        .event(12, 1, detail::checkpoint_event("checkpoints/0"))
        .event(12, {}, detail::warning_event("hot"))
        .event(13, {}, detail::ranks_event({{0, 1, 2, 90}}))
        .event(13, {}, detail::system_event({{"cpu_percent", 50}}))
        .write();
    server_ = std::make_unique<WebServer>(
        std::vector<std::string>{directory_.path().string()},
        WebServerOptions{.interval_ms = 1});
    client_ = std::make_unique<httplib::Client>("127.0.0.1", server_->port());
  }

  [[nodiscard]] std::string with_token(const std::string& path) const {
    return path + (path.find('?') == path.npos ? "?" : "&") +
        "token=" + server_->token();
  }
  httplib::Result get(const std::string& path) {
    return client_->Get(with_token(path));
  }
  json get_json(const std::string& path) {
    const auto result = get(path);
    return result && result->status == 200 ? json::parse(result->body) : json();
  }

  testing::TemporaryDirectory directory_;
  RunJournal journal_;
  std::unique_ptr<WebServer> server_;
  std::unique_ptr<httplib::Client> client_;
};

TEST_F(Web, RefusesRequestsWithoutTheToken) {
  for (const char* path :
       {"/", "/api/runs", "/?token=", "/?token=0123", "/api/stream", "/x"}) {
    const auto result = client_->Get(path);
    ASSERT_TRUE(result) << path;
    EXPECT_EQ(result->status, 403) << path;
    EXPECT_THAT(result->body, Not(HasSubstr("loss")));
  }
  EXPECT_EQ(get("/")->status, 200);
}

TEST_F(Web, AnswersNothingButGet) {
  const std::string path = with_token("/api/runs");
  EXPECT_EQ(client_->Post(path, "x", "text/plain")->status, 404);
  EXPECT_EQ(client_->Put(path, "x", "text/plain")->status, 404);
  EXPECT_EQ(client_->Delete(path)->status, 404);
  EXPECT_EQ(client_->Options(path)->status, 404);
  EXPECT_EQ(client_->Post("/api/runs", "x", "text/plain")->status, 403);
}

TEST_F(Web, ServesNoFiles) {
  for (const char* path :
       {"/journal",
        "/a/journal",
        "/../a/journal",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2f..%2f..%2fetc/passwd",
        "//etc/passwd",
        "/api/../../etc/passwd"}) {
    const auto result = get(path);
    ASSERT_TRUE(result) << path;
    EXPECT_EQ(result->status, 404) << path;
    EXPECT_EQ(result->body, "") << path;
  }
}

TEST_F(Web, RefusesOtherHostsNames) {
  const std::string port = std::to_string(server_->port());
  const auto status = [&](const std::string& host) {
    return client_->Get(with_token("/api/runs"), {{"Host", host}})->status;
  };
  EXPECT_EQ(status("evil.example:" + port), 403);
  EXPECT_EQ(status("127.0.0.1.evil.example:" + port), 403);
  EXPECT_EQ(status("127.0.0.1"), 403);
  EXPECT_EQ(status("127.0.0.1:" + port), 200);
  EXPECT_EQ(status("LocalHost:" + port), 200);
}

TEST_F(Web, ServesAPageThatLoadsNothing) {
  const auto result = get("/");
  ASSERT_EQ(result->status, 200);
  EXPECT_EQ(result->get_header_value("Referrer-Policy"), "no-referrer");
  EXPECT_THAT(result->body, HasSubstr(server_->token()));
  EXPECT_THAT(result->body, HasSubstr("default-src 'none'"));
  for (const char* mark : {"@STYLE@", "@SCRIPT@", "@DATA@", " src=", "@import"})
    EXPECT_THAT(std::string(page_files::kIndex), Not(HasSubstr(" src=")))
        << mark;
}

TEST_F(Web, SendsAnswersAsTheyAre) {
  for (const char* path : {"/", "/api/runs", "/api/events?run=0"}) {
    const auto result = client_->Get(
        with_token(path), {{"Accept-Encoding", "gzip, deflate, br"}});
    ASSERT_EQ(result->status, 200) << path;
    EXPECT_FALSE(result->has_header("Content-Encoding")) << path;
    EXPECT_EQ(
        result->get_header_value("Content-Length"),
        std::to_string(result->body.size()))
        << path;
  }
}

TEST_F(Web, TellsAboutRuns) {
  const json runs = get_json("/api/runs");
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0]["name"], "a");
  EXPECT_EQ(runs[0]["step"], 1);
  EXPECT_EQ(runs[0]["settings"]["command"], "train");
  EXPECT_EQ(
      runs[0]["checkpoints"], json::parse(R"([[1, 2.0, "checkpoints/0"]])"));
  EXPECT_EQ(runs[0]["warnings"], 1);
  EXPECT_EQ(
      runs[0]["figures"]["loss"],
      json::parse(
          R"({"better":"lower","count":2,"last":[1,2.0],"max":[0,4.0],"min":[1,2.0]})"));
}

TEST_F(Web, GivesCurvesOfTheRunsAndStepsThatAreAskedFor) {
  EXPECT_EQ(
      get_json("/api/series?name=loss&runs=0,7,x"),
      json::parse(
          R"({"0":{"count":2,"steps":[0,1],"times":[1,2],"values":[4,2]}})"));
  EXPECT_EQ(
      get_json("/api/series?name=loss&runs=0&from=1")["0"]["values"],
      json::parse("[2]"));
  EXPECT_EQ(get_json("/api/series?name=none&runs=0"), json::object());
}

TEST_F(Web, GivesPicturesInWhichNothingRuns) {
  const json events = get_json("/api/events?run=0");
  ASSERT_EQ(events[0]["kind"], "image");
  EXPECT_EQ(events[0]["name"], "samples#3");
  const auto result = get("/api/body?run=0&event=" + events[0]["index"].dump());
  EXPECT_EQ(result->status, 200);
  EXPECT_EQ(result->body, "\x89PNG");
  EXPECT_EQ(result->get_header_value("Content-Type"), "image/png");
  EXPECT_THAT(
      result->get_header_value("Content-Security-Policy"),
      HasSubstr("sandbox"));
  for (const char* path :
       {"/api/body?run=0&event=99",
        "/api/body?run=5&event=0",
        "/api/events?run=-1",
        "/api/ranks"})
    EXPECT_EQ(get(path)->status, 404) << path;
}

TEST_F(Web, GivesRanksAndFiguresOfTheMachine) {
  EXPECT_EQ(
      get_json("/api/ranks?run=0"),
      json::parse(R"([{"time":13.0,"ranks":[[0,1,2.0,90.0]]}])"));
  EXPECT_EQ(
      get_json("/api/system?run=0")["cpu_percent"]["values"],
      json::parse("[50]"));
}

// Reads the stream of changes until one satisfies `is_wanted`; runs `grow` once
// the stream has begun.
template <class Grow, class IsWanted>
json read_change(
    const std::string& path,
    int port,
    Grow grow,
    IsWanted is_wanted) {
  httplib::Client stream("127.0.0.1", port);
  std::string text;
  json found;
  bool has_begun = false;
  stream.Get(path, [&](const char* bytes, std::size_t size) {
    text.append(bytes, size);
    if (!has_begun) {
      has_begun = true;
      grow();
    }
    for (std::size_t end = 0; (end = text.find("\n\n")) != text.npos;
         text.erase(0, end + 2)) {
      const std::string begin = "event: changes\ndata: ";
      if (!text.starts_with(begin)) continue;
      const json changes =
          json::parse(text.substr(begin.size(), end - begin.size()));
      for (const json& change : changes)
        if (found.is_null() && is_wanted(change)) found = change;
    }
    return found.is_null();
  });
  return found;
}

TEST_F(Web, StreamsOnlyNewPoints) {
  const json change = read_change(
      with_token("/api/stream"),
      server_->port(),
      [&] { journal_.scalars(15, 2, {{"loss", 1}}).write(); },
      [](const json& each) { return each["figures"].contains("loss"); });
  EXPECT_EQ(
      change["figures"]["loss"],
      json::parse(R"({"at":2,"steps":[2],"times":[5],"values":[1]})"));
  EXPECT_EQ(change["resets"], json::array());
  EXPECT_EQ(change["step"], 2);
  EXPECT_EQ(change["is_new"], false);
}

TEST_F(Web, StreamsThatStepsAreRepeated) {
  const json change = read_change(
      with_token("/api/stream"),
      server_->port(),
      [&] { journal_.rewind(15, 0).scalars(16, 1, {{"loss", 3}}).write(); },
      [](const json& each) { return !each["resets"].empty(); });
  EXPECT_EQ(change["resets"], json({"loss"}));
  EXPECT_EQ(
      get_json("/api/series?name=loss&runs=0")["0"]["values"],
      json::parse("[4,3]"));
}

TEST_F(Web, StreamsRunsThatBeginLater) {
  const testing::TemporaryDirectory elsewhere;
  const json change = read_change(
      with_token("/api/stream"),
      server_->port(),
      [&] {
        // Renamed into place, because the server can scan between any two
        // writes.
        RunJournal(elsewhere / "b").scalars(20, 0, {{"f1", 1}}).write();
        std::filesystem::rename(elsewhere / "b", directory_ / "b");
      },
      [](const json& each) { return each["id"] == 1; });
  EXPECT_EQ(change["is_new"], true);
  EXPECT_EQ(change["step"], 0);
  EXPECT_EQ(change["resets"], json({"f1"}));
  EXPECT_EQ(get_json("/api/runs")[1]["name"], "b");
}

TEST_F(Web, StreamsTheFirstPointsOfARunThatBeganEmpty) {
  std::optional<RunJournal> journal;
  std::optional<json> empty;
  const json change = read_change(
      with_token("/api/stream"),
      server_->port(),
      [&] { journal.emplace(directory_ / "b"); },
      [&](const json& each) {
        if (each["id"] != 1) return false;
        if (empty) return true;
        empty = each;
        journal->scalars(20, 0, {{"f1", 1}}).write();
        return false;
      });
  EXPECT_EQ((*empty)["is_new"], true);
  EXPECT_EQ((*empty)["resets"], json::array());
  EXPECT_EQ(change["is_new"], false);
  EXPECT_EQ(change["resets"], json::array());
  EXPECT_EQ(
      change["figures"]["f1"],
      json::parse(R"({"at":0,"steps":[0],"times":[0],"values":[1]})"));
}

TEST_F(Web, SaysThatAPortIsTaken) {
  testing::expect_error<ConfigError>(
      [&] {
        const WebServer other(
            {directory_.path().string()}, {.port = server_->port()});
      },
      "pass another one with --port");
}

TEST_F(Web, ReportsAreOneFileWithAllData) {
  const auto runs =
      read_runs({directory_.path().string()}, [](const std::string&) {});
  const std::string page = report_page(runs);
  EXPECT_THAT(page, Not(HasSubstr("\"token\"")));
  EXPECT_THAT(
      page,
      HasSubstr(
          R"("series":{"loss":{"0":{"count":2,"steps":[0,1],"times":[1,2],"values":[4,2]}}})"));
  EXPECT_THAT(page, HasSubstr("data:image/png;base64,iVBORw=="));
  // Logged text cannot close the script element that holds it.
  EXPECT_THAT(page, HasSubstr("\\u003c/script>\\u003cb>"));
}

TEST(Base64, IsAsInTheStandard) {
  const std::pair<const char*, const char*> cases[] = {
      {"", ""},
      {"f", "Zg=="},
      {"fo", "Zm8="},
      {"foo", "Zm9v"},
      {"foob", "Zm9vYg=="},
      {"fooba", "Zm9vYmE="},
      {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : cases)
    EXPECT_EQ(detail::base64(bytes), text);
  EXPECT_EQ(detail::base64("\xff\xfe"), "//4=");
}

}  // namespace web_server_test
}  // namespace accelerate::cli
