// Makes many Worlds in each of two rank processes, in four ways:
//
//   worlds_check env|agent|launch|tool NUMBER
//
// env: rank 0 serves the store. agent: this process serves it, like torchrun's
// agent. launch: launch_function() starts the ranks. tool: accelerate-cpp
// launch started this rank and serves the store.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include <sys/wait.h>
#include <unistd.h>

#include <ATen/Functions.h>

#include <accelerate/accelerator.h>
#include <accelerate/launch.h>
#include <accelerate/world.h>

namespace {

using namespace accelerate;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "not so: %s\n", what);
  std::_Exit(1);
}

bool adds_up(const World& world) {
  const at::Tensor sum = at::ones({});
  world.group().all_reduce(sum);
  return sum.item<float>() == 2;
}

void run_rank(int number) {
  for (int i = 0; i < number; ++i) {
    const World world;
    require(adds_up(world), "one world after the other");
  }
  {
    std::optional<World> first(std::in_place);
    const World second;
    require(adds_up(second) && adds_up(*first), "two at once");
    first.reset();
    require(adds_up(second), "the second after the first");
  }
  for (int i = 0; i < 5; ++i) {
    Accelerator accelerator;
    require(accelerator.num_processes() == 2, "two processes");
    accelerator.wait_for_everyone();
    if (i % 2 == 0) accelerator.finish();
  }
}

void run_guarded(int number) {
  try {
    run_rank(number);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(1);
  }
}

// Starts two ranks with torchrun's variables, and waits for them.
int run_ranks(char** argv, int port, bool is_agent) {
  ::setenv("WORLD_SIZE", "2", 1);
  ::setenv("LOCAL_WORLD_SIZE", "2", 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  if (is_agent) {
    ::setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    ::setenv("TORCHELASTIC_RESTART_COUNT", "0", 1);
  }
  for (const char* const rank : {"0", "1"}) {
    ::setenv("RANK", rank, 1);
    ::setenv("LOCAL_RANK", rank, 1);
    const pid_t child = ::fork();
    if (child == 0) {
      ::execv("/proc/self/exe", argv);
      std::_Exit(127);
    }
  }
  bool are_right = true;
  for (int i = 0; i < 2; ++i) {
    int status = 0;
    ::wait(&status);
    are_right = are_right && status == 0;
  }
  require(are_right, "both ranks succeed");
  return 0;
}

}  // namespace

int main(int, char** argv) {
  const std::string_view mode = argv[1];
  const int number = std::atoi(argv[2]);
  if (mode == "launch") {
    launch_function(
        [number] { run_rank(number); }, {.num_processes = 2, .cpu = true});
    return 0;
  }
  if (std::getenv("RANK") != nullptr) {
    run_guarded(number);
    return 0;
  }
  std::optional<Store> agent(
      std::in_place, Store::tcp("127.0.0.1", 0, /*is_server=*/true));
  const int port = agent->port();
  const bool is_agent = mode == "agent";
  // Otherwise only the number of a free port is needed.
  if (!is_agent) agent.reset();
  return run_ranks(argv, port, is_agent);
}
