#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include <ATen/Functions.h>

#include <accelerate/accelerate.h>

namespace {

void run(const std::string& what) {
  accelerate::AcceleratorOptions options;
  if (what == "silent") options.world.timeout = std::chrono::seconds(2);
  if (what == "shard") options.parallel.shard = 3;
  const accelerate::Accelerator accelerator(options);
  const accelerate::Group& group = accelerator.world().group();
  const bool is_bad = accelerator.is_last_process();
  group.all_reduce(at::ones({4}));
  if (what == "throw" && is_bad) throw std::runtime_error("the user's own mistake");
  if (what == "kill" && is_bad) std::raise(SIGKILL);
  if (what == "silent" && is_bad) std::raise(SIGSTOP);
  if (what == "leave" && is_bad) std::exit(0);
  if (what != "clean") group.all_reduce(at::ones({4}));
}

}  // namespace

int main(int, char** argv) {
  try {
    run(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 3;
  }
  return 0;
}
