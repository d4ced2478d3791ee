// A rank that trains a few steps. The last rank hangs in the second step: the
// first argument names the phase, the second how it hangs. The third is a
// directory; with a fourth, "kill", the code asks to kill ranks that hang. For
// hang_many.py, the ranks write into the directory when the last rank hung
// ("hung") and when each of the others failed ("failed_0" ...), in nanoseconds
// of the monotonic clock.
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <mutex>
#include <string>

#include <ATen/Functions.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accelerate/accelerate.h>

namespace {

std::atomic<bool> is_time{false};
std::string way;
std::string directory;
bool kills = false;

void note_time(const std::string& name) {
  if (directory.empty()) return;
  std::ofstream(directory + "/" + name)
      << std::chrono::steady_clock::now().time_since_epoch() /
          std::chrono::nanoseconds(1);
}

// Stacks show this function's name.
[[gnu::noinline]] void hang_in_the_programs_own_code() {
  if (way == "killed") std::cerr << "goodbye" << std::endl;
  note_time("hung");
  if (way == "killed") std::raise(SIGKILL);
  if (way == "stopped") std::raise(SIGSTOP);
  if (way == "loop") {
    std::atomic<int> count{0};
    for (;;) ++count;
  }
  if (way == "lock") {
    std::timed_mutex mutex;
    mutex.lock();
    while (!mutex.try_lock_for(std::chrono::hours(1))) {
    }
  }
  if (way == "file") {
    // A pipe without a writer, to simulate a disk that does not answer.
    const std::string path = directory + "/pipe";
    if (::mkfifo(path.c_str(), 0600) != 0) std::abort();
    static_cast<void>(::open(path.c_str(), O_RDONLY));
  }
}

void hang_if_it_is_time(const std::string& phase, const std::string& wanted) {
  if (phase == wanted && is_time) hang_in_the_programs_own_code();
}

struct Data {
  std::string wanted;

  [[nodiscard]] std::int64_t size() const { return 16; }
  [[nodiscard]] std::tuple<at::Tensor> get(std::int64_t i) const {
    hang_if_it_is_time("data", wanted);
    return {at::full({4}, static_cast<double>(i))};
  }
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::string wanted) : wanted_(std::move(wanted)) {
    register_module("layer", layer);
  }
  at::Tensor forward(const at::Tensor& x) {
    hang_if_it_is_time("forward", wanted_);
    const at::Tensor y = layer(x);
    y.register_hook(
        [this](const at::Tensor&) { hang_if_it_is_time("backward", wanted_); });
    return y;
  }
  torch::nn::Linear layer{4, 4};

 private:
  std::string wanted_;
};
TORCH_MODULE(Net);

class Sgd final : public torch::optim::SGD {
 public:
  Sgd(std::vector<at::Tensor> parameters, std::string wanted)
      : SGD(std::move(parameters), 0.1), wanted_(std::move(wanted)) {}
  at::Tensor step(LossClosure closure = nullptr) override {
    hang_if_it_is_time("optimizer", wanted_);
    return SGD::step(std::move(closure));
  }

 private:
  std::string wanted_;
};

void run(const std::string& wanted) {
  accelerate::AcceleratorOptions options;
  if (kills) {
    options.world.hang_seconds = 3;
    options.world.on_hang = "kill";
  }
  const accelerate::Accelerator accelerator(options);
  const accelerate::Group& group = accelerator.world().group();
  const bool is_bad = accelerator.world().is_last_process();
  Net net(wanted);
  Sgd sgd(net->parameters(), wanted);
  auto [model, optimizer, loader] = accelerator.prepare(
      net, sgd, accelerate::DataLoader(Data{wanted}, {.batch_size = 2}));
  const auto hook = accelerator.checkpoints().register_save_state_pre_hook(
      [&](accelerate::SaveHookContext&) {
        hang_if_it_is_time("checkpoint", wanted);
      });
  int step = 0;
  for (auto& [x] : loader) {
    optimizer.zero_grad();
    accelerator.backward(model(x).pow(2).mean());
    optimizer.step();
    is_time = ++step == 2 && is_bad;
    hang_if_it_is_time("between", wanted);
    if (step == 2 && wanted == "checkpoint")
      accelerator.save_state(directory + "/state");
    const bool disagrees = wanted == "extra" || wanted == "different";
    if (step == 2 && is_bad && disagrees) note_time("hung");
    if (step == 2 && is_bad && wanted == "extra")
      group.all_reduce(at::ones({3}));
    if (step == 2 && wanted == "different") {
      if (is_bad) {
        group.broadcast(at::ones({4}), 0);
      } else {
        group.all_reduce(at::ones({4}));
      }
    }
  }
  group.all_reduce(at::ones({4}));
}

}  // namespace

int main(int argc, char** argv) {
  way = argc > 2 ? argv[2] : "";
  directory = argc > 3 ? argv[3] : "";
  kills = argc > 4 && std::string(argv[4]) == "kill";
  try {
    run(argv[1]);
  } catch (const std::exception& error) {
    const char* const rank = std::getenv("RANK");
    note_time(std::string("failed_") + (rank != nullptr ? rank : "0"));
    std::cerr << error.what() << '\n';
    return 3;
  }
  return 0;
}
