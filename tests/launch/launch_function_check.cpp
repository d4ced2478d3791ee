// Tests launch_function(). A separate program, since every rank runs it from
// the beginning.
//
//   launch_function_check DIRECTORY
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

#include <ATen/Functions.h>

#include <accelerate/error.h>
#include <accelerate/launch.h>
#include <accelerate/world.h>

namespace {

namespace fs = std::filesystem;
using namespace accelerate;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::exit(1);
}

// Whether the launcher's store listens only at 127.0.0.1.
bool listens_on_loopback_only(int port) {
  char text[8];
  std::snprintf(text, sizeof text, ":%04X", static_cast<unsigned>(port));
  int num_listeners = 0;
  for (const char* const table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    std::string number, own, peer, state, rest;
    while (file >> number >> own >> peer >> state && std::getline(file, rest)) {
      if (state != "0A" || !own.ends_with(text)) continue;
      ++num_listeners;
      if (own != std::string("0100007F") + text) return false;
    }
  }
  return num_listeners == 1;
}

template <class Wanted>
void expect_failure(
    const std::string& name,
    int num_processes,
    const std::function<void()>& function,
    const std::string& phrase) {
  try {
    launch_function(
        function, {.num_processes = num_processes, .name = name, .cpu = true});
  } catch (const Wanted& error) {
    const std::string text = error.what();
    if (text.find(phrase) == std::string::npos) {
      std::fprintf(stderr, "%s: %s\n", name.c_str(), text.c_str());
    }
    require(text.find(phrase) != std::string::npos, "the error's text");
    return;
  }
  // Only a rank, which skips calls with other names, may get here.
  require(std::getenv("ACCELERATE_CPP_FUNCTION") != nullptr, "an error came");
}

}  // namespace

int main(int argc, char** argv) {
  const fs::path directory = argv[1];
  const bool is_parent = std::getenv("ACCELERATE_CPP_FUNCTION") == nullptr;
  if (is_parent) {
    fs::remove_all(directory);
    fs::create_directories(directory);
  }

  launch_function(
      [&] {
        require(
            listens_on_loopback_only(std::atoi(std::getenv("MASTER_PORT"))),
            "the store listens at the loopback address");
        require(
            std::string(std::getenv("ACCELERATE_CPP_STORE_SECRET")).size() ==
                32,
            "ranks have the secret");
        const World world;
        const at::Tensor value = at::ones({2});
        world.group().all_reduce(value);
        std::ofstream(directory / std::to_string(world.rank()))
            << value.sum().item<double>();
      },
      {.num_processes = 3, .name = "sum", .cpu = true});
  for (const char* const rank : {"0", "1", "2"}) {
    double sum = 0;
    std::ifstream(directory / rank) >> sum;
    require(sum == 6, "three ranks add up");
  }

  expect_failure<ConfigError>(
      "throws",
      2,
      [] {
        const World world;
        if (world.rank() == 1) throw ConfigError("the user's mistake");
        world.group().all_reduce(at::ones({2}));
      },
      "rank 1: the user's mistake");
  expect_failure<DistributedError>(
      "dies",
      2,
      [] {
        const World world;
        if (world.rank() == 0) std::raise(SIGKILL);
        world.group().all_reduce(at::ones({2}));
      },
      "rank 0 of launch_function() was killed by SIGKILL");
  const auto stop_one = [] {
    WorldOptions options;
    options.hang_seconds = 0.5;
    options.on_hang = "kill";
    const World world(options);
    if (world.rank() == 0) std::raise(SIGSTOP);
    world.group().all_reduce(at::ones({2}));
  };
  expect_failure<DistributedError>(
      "hangs",
      2,
      stop_one,
      "rank 0 of launch_function() was ended because it held up the others "
      "(--on_hang kill)");
  // The peer ignores SIGTERM; being killed by SIGKILL does not make it the
  // cause.
  expect_failure<DistributedError>(
      "stubborn",
      2,
      [] {
        std::signal(SIGTERM, SIG_IGN);
        const World world;
        if (world.rank() == 0) throw DistributedError("the line is cut");
        for (;;) ::pause();
      },
      "rank 0: the line is cut");
  expect_failure<Error>(
      "anything",
      2,
      [] { throw 5; },
      "an exception that is not a std::exception was thrown");

  debug_launcher([&] {
    const World world;
    require(world.size() == 2, "two ranks");
    world.group().barrier();
    std::ofstream(directory / ("debug" + std::to_string(world.rank())));
  });
  require(fs::exists(directory / "debug1"), "debug_launcher ran");

  const bool is_of_arguments = argc > 2 && std::string(argv[2]) == "given";
  launch_function(
      [&] {
        require(is_of_arguments, "a rank has the arguments that were given");
        require(
            std::string(std::getenv("CHECK_COLOUR")) == "blue",
            "a rank has the variables that were given");
        require(
            std::getenv("ACCELERATE_USE_CPU") == nullptr,
            "a rank may use an accelerator unless told otherwise");
        std::ofstream(directory / (std::string("given") + std::getenv("RANK")));
      },
      {.num_processes = 2,
       .name = "given",
       .variables = {{"CHECK_COLOUR", "blue"}},
       .arguments = std::vector<std::string>{directory, "given"}});
  for (const char* const rank : {"given0", "given1"})
    require(fs::exists(directory / rank), "both had arguments of their own");
  launch_function(
      [] {
        require(
            std::string(std::getenv("ACCELERATE_USE_CPU")) == "true",
            "ranks stay on the CPU");
      },
      {.num_processes = 2, .name = "cpu", .cpu = true});

  pid_t where = 0;
  launch_function(
      [&] {
        where = ::getpid();
        require(
            std::string(std::getenv("ACCELERATE_USE_CPU")) == "true" &&
                std::string(std::getenv("CHECK_COLOUR")) == "red",
            "one process has its variables");
      },
      {.name = "alone", .cpu = true, .variables = {{"CHECK_COLOUR", "red"}}});
  require(where == ::getpid(), "one process is this one");
  require(
      std::getenv("ACCELERATE_USE_CPU") == nullptr &&
          std::getenv("CHECK_COLOUR") == nullptr,
      "its variables are gone afterwards");
  try {
    launch_function([] {}, {.num_processes = 0, .name = "none"});
    require(false, "no processes are refused");
  } catch (const ConfigError&) {
  }
  fs::remove_all(directory);
  return 0;
}
