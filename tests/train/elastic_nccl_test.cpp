// run_elastic() where NCCL connects the ranks, which are threads.
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <c10/core/AutogradState.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accelerate/accelerate.h>

#include "comm/group/group_impl.h"
#include "comm/transport/automatic_transport.h"
#include "comm/transport/nccl/device_transport.h"
#include "config/thread_environment.h"
#include "launch/board/rank_activity.h"
#include "launch/elastic/generations.h"
#include "support/nccl_ranks.h"
#include "support/pretend_device.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace elastic_nccl_test {

using ::testing::ElementsAre;
using testing::TemporaryDirectory;

constexpr int kRanks = 3;
constexpr int kSteps = 5;
constexpr int kSavedStep = 2;

// The end of a rank.
struct Death : std::runtime_error {
  Death() : std::runtime_error("out of luck") {}
};

/// Has a thread for each rank's process, and replaces the first that dies.
class Launcher {
 public:
  explicit Launcher(std::function<void(ElasticContext&, Launcher&)> program)
      : program_(std::move(program)) {}

  /// Returns when all ranks have finished.
  void run() {
    for (int seat = 0; seat < kRanks; ++seat) start(seat, 1);
    std::unique_lock lock(mutex_);
    while (num_running_ > 0) {
      // As a launcher polls the board.
      changed_.wait_for(lock, std::chrono::milliseconds(1));
      for (const End& end : std::exchange(ends_, {})) {
        --num_running_;
        if (!end.has_died) {
          generations_.finish(end.seat);
        } else if (
            generations_.lose(end.seat) ==
            detail::Generations::Loss::replaced) {
          start(end.seat, generations_.next());
        }
      }
      generations_.advance();
    }
    lock.unlock();
    for (std::thread& thread : threads_) thread.join();
    for (const std::exception_ptr& failure : failures_)
      std::rethrow_exception(failure);
  }

  /// The store of a generation.
  [[nodiscard]] Store store(int generation) const {
    return store_.with_prefix("generation" + std::to_string(generation));
  }
  /// Whether the board shows that a rank has ended. Seats are ranks, since
  /// replacements take the seats of those that died.
  [[nodiscard]] bool is_gone(int rank) const {
    return detail::read_activity(board_, rank).state ==
        detail::BoardPageState::finished;
  }

 private:
  struct End {
    int seat = 0;
    bool has_died = false;
  };

  void start(int seat, std::uint32_t generation) {
    const std::string rank = std::to_string(seat);
    const std::string size = std::to_string(kRanks);
    std::map<std::string, std::string> variables{
        {"RANK", rank},
        {"LOCAL_RANK", rank},
        {"WORLD_SIZE", size},
        {"LOCAL_WORLD_SIZE", size},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", "29500"},
        {"ACCELERATE_CPP_BOARD", board_.ticket()},
        {"ACCELERATE_CPP_BOARD_PAGE", rank},
        {"ACCELERATE_CPP_FIRST_GENERATION", std::to_string(generation)}};
    generations_.add(seat, ::getpid());
    ++num_running_;
    threads_.emplace_back([this, seat, variables = std::move(variables)] {
      End end{seat};
      std::exception_ptr failure;
      try {
        const detail::ThreadEnvironment environment(variables);
        run_elastic(
            [this](ElasticContext& context) { program_(context, *this); });
      } catch (const Death&) {
        end.has_died = true;
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      ends_.push_back(end);
      if (failure) failures_.push_back(failure);
      changed_.notify_all();
    });
  }

  std::function<void(ElasticContext&, Launcher&)> program_;
  Store store_ = Store::in_memory();
  detail::Board board_ =
      detail::Board::create({.num_pages = kRanks, .world_size = kRanks});
  int num_restarts_left_ = 1;
  detail::Generations generations_{
      board_,
      {.fewest = kRanks,
       .most = kRanks,
       .num_restarts_left = &num_restarts_left_}};
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_running_ = 0;
  std::vector<End> ends_;
  std::vector<std::exception_ptr> failures_;
  std::vector<std::thread> threads_;
};

/// A new current stream, as each process has one of its own.
class OwnStream {
 public:
  explicit OwnStream(const at::Device& device) : guard_(device.type()) {
    guard_.setDevice(device);
    before_ = guard_.exchangeStream(guard_.getNewStream(device));
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream() { guard_.exchangeStream(*before_); }

 private:
  c10::impl::VirtualGuardImpl guard_;
  std::optional<c10::Stream> before_;
};

WorldOptions world_of(const ElasticContext& context, Launcher& launcher) {
  const int rank = context.process_index();
  detail::TransportSettings settings{
      .device = testing::pretend_device(rank % 2), .watch_ranks = [&launcher] {
        return [&launcher](int each) { return launcher.is_gone(each); };
      }};
  settings.environment.set(
      "ACCELERATE_NCCL_LIBRARY", testing::fake_nccl_path());
  settings.environment.set("NCCL_HOSTID", std::to_string(rank));
  return {
      .store = launcher.store(context.generation()),
      .device = settings.device,
      .timeout = std::chrono::seconds(30),
      .logger = Logger([](const LogRecord&) {}, LogLevel::off),
      .own_transport = detail::with_nccl(
          detail::make_automatic_transport(settings),
          settings,
          detail::NcclUse::required,
          at::kPrivateUse1)};
}

at::Tensor inputs_of(int step, int rank) {
  return torch::arange(4).add(4 * (kRanks * step + rank)).mul(0.3).sin();
}

torch::nn::Linear make_net() {
  torch::nn::Linear net(4, 2);
  const torch::NoGradGuard without_gradients;
  net->weight.copy_(torch::arange(8).view({2, 4}).mul(0.1).sub(0.3));
  net->bias.zero_();
  return net;
}

at::Tensor loss_of(const at::Tensor& outputs) {
  return outputs.tanh().square().mean();
}

/// What the ranks of all generations tell.
struct Story {
  std::mutex mutex;
  /// The weights at the end of training, by rank.
  std::map<int, at::Tensor> weights;
  /// The step at which each rank of the second generation began.
  std::vector<int> resumed_at;
};

void train(
    ElasticContext& context,
    Launcher& launcher,
    const std::string& directory,
    bool has_death,
    Story& story) {
  const int rank = context.process_index();
  const OwnStream stream(testing::pretend_device(rank % 2));
  // LibTorch's engine has one thread per device, which the ranks share.
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  const Accelerator accelerator(
      {.project_configuration =
           {.project_dir = directory, .automatic_checkpoint_naming = true},
       .journal = false,
       .world = world_of(context, launcher)});
  EXPECT_EQ(
      accelerator.world().group().impl()->connection->facts().name,
      "shared_memory+nccl");
  torch::nn::Linear net = make_net();
  torch::optim::SGD sgd(
      net->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  int step = 0;
  accelerator.register_for_checkpointing("step", step);
  const bool has_resumed = context.resume(accelerator);
  EXPECT_EQ(has_resumed, context.generation() > 1);
  if (has_resumed) {
    const std::lock_guard lock(story.mutex);
    story.resumed_at.push_back(step);
  }
  while (step < kSteps) {
    const bool is_last_chance = step == kSavedStep + 1 && rank == 1;
    if (has_death && is_last_chance && context.generation() == 1) throw Death();
    optimizer.zero_grad();
    const at::Tensor inputs = inputs_of(step, rank).to(accelerator.device());
    accelerator.backward(loss_of(model(inputs)));
    optimizer.step();
    if (++step == kSavedStep) accelerator.save_state();
    EXPECT_FALSE(context.step_done(accelerator));
  }
  EXPECT_GT(testing::num_nccl_communicators(), 0);
  const at::Tensor weight = net->weight.detach().cpu();
  const std::lock_guard lock(story.mutex);
  story.weights[rank] = weight;
}

void train_group(bool has_death, Story& story) {
  const TemporaryDirectory directory;
  Launcher launcher([&](ElasticContext& context, Launcher& own) {
    train(context, own, directory.path().string(), has_death, story);
  });
  launcher.run();
  ASSERT_EQ(story.weights.size(), kRanks);
  for (int rank = 1; rank < kRanks; ++rank)
    EXPECT_TRUE(torch::equal(story.weights[rank], story.weights[0]));
  EXPECT_EQ(testing::num_nccl_communicators(), 0);
}

TEST(ElasticOverNccl, GoesOnInANewGenerationWhenARankDies) {
  Story undisturbed;
  train_group(/*has_death=*/false, undisturbed);
  EXPECT_TRUE(undisturbed.resumed_at.empty());
  // Only the board shows the others that a rank has gone, as between devices of
  // one machine.
  const testing::FakeNcclFaultScope faults({.hides_aborts = true});
  Story story;
  train_group(/*has_death=*/true, story);
  EXPECT_THAT(
      story.resumed_at, ElementsAre(kSavedStep, kSavedStep, kSavedStep));
  EXPECT_TRUE(torch::equal(story.weights[0], undisturbed.weights[0]));
}

}  // namespace elastic_nccl_test
}  // namespace accelerate
