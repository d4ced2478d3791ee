// From the start of `watch --web` over 50 runs of 100,000 points each until the
// page, the run summaries and all curves of their figure have arrived, compared
// with only reading the journals. The journals are in the page cache.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <httplib.h>

#include "format/journal/journal_frame.h"
#include "report.h"

extern char** environ;

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kRuns = 50;
constexpr int kSteps = 100000;
// Steps that a fast run writes to its journal at a time.
constexpr int kStepsPerFrame = 200;
constexpr int kRepetitions = 5;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "watch: %s\n", what.c_str());
  std::exit(1);
}

void write_run(const fs::path& directory, int run) {
  fs::create_directories(directory);
  std::ofstream file(directory / "journal", std::ios::binary);
  accelerate::detail::JournalEncoder encoder;
  for (int step = 0; step < kSteps; ++step) {
    encoder.begin_scalars(1e9 + 0.01 * step, step, 1);
    encoder.add_scalar("train/loss", run + std::exp(-1e-4 * step));
    if ((step + 1) % kStepsPerFrame == 0)
      file << encoder.take_frame(
          static_cast<std::uint64_t>(step / kStepsPerFrame));
  }
}

/// The tool, serving a directory.
class Server {
 public:
  Server(std::string tool, std::string directory) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) fail("there is no pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    std::string watch = "watch", web = "--web";
    char* arguments[] = {
        tool.data(), watch.data(), web.data(), directory.data(), nullptr};
    const int error =
        posix_spawn(&pid_, tool.c_str(), &actions, nullptr, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (error != 0) fail(tool + " cannot be started");
    for (char byte = 0; read(ends[0], &byte, 1) == 1 && byte != '\n';)
      address_ += byte;
    close(ends[0]);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() {
    kill(pid_, SIGTERM);
    waitpid(pid_, nullptr, 0);
  }

  /// http://127.0.0.1:PORT/?token=TOKEN
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  pid_t pid_ = -1;
  std::string address_;
};

std::size_t get(httplib::Client& client, const std::string& path) {
  const auto answer = client.Get(path);
  if (!answer || answer->status != 200) fail(path + " is not answered");
  return answer->body.size();
}

double seconds_to_open(const std::string& tool, const std::string& directory) {
  const auto start = Clock::now();
  const Server server(tool, directory);
  const std::size_t query = server.address().find("/?token=");
  if (query == std::string::npos) fail("no address: " + server.address());
  const std::string token = server.address().substr(query + 2);
  httplib::Client client(server.address().substr(0, query));
  client.set_keep_alive(true);
  client.set_tcp_nodelay(true);
  std::string all = "0";
  for (int run = 1; run < kRuns; ++run) all += "," + std::to_string(run);
  std::size_t num_bytes = get(client, "/?" + token);
  num_bytes += get(client, "/api/runs?" + token);
  num_bytes +=
      get(client,
          "/api/series?name=train/loss&columns=400&runs=" + all + "&" + token);
  const double seconds = seconds_since(start);
  if (num_bytes < 100000) fail("the curves are missing");
  return seconds;
}

double seconds_to_read(const fs::path& directory) {
  const auto start = Clock::now();
  std::vector<char> bytes(1U << 20U);
  for (const auto& run : fs::directory_iterator(directory)) {
    const int file =
        open((run.path() / "journal").c_str(), O_RDONLY | O_CLOEXEC);
    while (read(file, bytes.data(), bytes.size()) > 0) {
    }
    close(file);
  }
  return seconds_since(start);
}

}  // namespace

int main(int, char** argv) {
  using namespace accelerate::benchmarks;
  const fs::path tool = fs::canonical(argv[0]).parent_path() / "accelerate-cpp";
  const fs::path scratch =
      fs::temp_directory_path() / ("bench_watch_" + std::to_string(getpid()));
  for (int run = 0; run < kRuns; ++run)
    write_run(scratch / ("run" + std::to_string(run)), run);
  std::vector<double> opened, bare;
  for (int i = 0; i < kRepetitions; ++i) {
    bare.push_back(seconds_to_read(scratch));
    opened.push_back(seconds_to_open(tool, scratch));
  }
  fs::remove_all(scratch);
  report(
      {"watch",
       "open_50_runs_s",
       median(opened),
       "s",
       median(bare),
       median(opened) / median(bare),
       opened.size()});
  return 0;
}
