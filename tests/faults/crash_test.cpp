// Repeatedly kills ranks with SIGKILL while they save, and lets new processes
// load what is left and compare it with what was saved.
//
//   crash_test --trials 1000 --mode sync|async|sharded --keep 1
//
// prints a line of JSON and exits with 1 if a complete checkpoint could not be
// loaded, if nothing could be loaded although a save had returned, or if
// anything loaded differs from what was saved.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <torch/torch.h>
#include <CLI/CLI.hpp>

#include <accelerate/accelerate.h>
#include <accelerate/optimizers.h>

#include "checkpoint/load/checkpoint_reader.h"
#include "checkpoint/load/destinations.h"
#include "checkpoint/save/checkpoint_writer.h"
#include "format/checkpoint/checkpoint_directory.h"
#include "format/checkpoint/commit.h"
#include "support/temporary_directory.h"

extern char** environ;

namespace {

namespace fs = std::filesystem;
using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::Axis;
using accelerate::Logger;
using accelerate::LogLevel;
using accelerate::LogRecord;
using accelerate::Model;
using accelerate::Optimizer;
using accelerate::SaveTicket;
using accelerate::StateDict;
using accelerate::Store;
using accelerate::World;
using accelerate::WorldOptions;
namespace detail = accelerate::detail;
using accelerate::testing::TemporaryDirectory;

constexpr int kNumRanks = 2;
constexpr std::int64_t kRows = 512;
constexpr std::int64_t kColumns = 512;

struct Flags {
  int trials = 100;
  std::string mode = "sync";
  int keep = 1;
  unsigned seed = 1;
  // The following are set only for workers.
  std::string directory;
  std::string store;
  int rank = 0;
};

// The values of tensor `which` in save `number`.
torch::Tensor values(std::int64_t number, int which) {
  return torch::arange(kRows * kColumns, torch::kFloat)
             .reshape({kRows, kColumns}) +
      static_cast<double>(number * 16 + which);
}

[[noreturn]] void end_as(const char* verdict, const std::string& why) {
  std::cout << verdict << ' ' << why << std::endl;
  std::_Exit(0);
}

struct Number {
  std::int64_t value = -1;
  [[nodiscard]] StateDict state_dict() const { return {{"value", value}}; }
  void load_state_dict(const StateDict& state) {
    value = state.get<std::int64_t>("value");
  }
};

WorldOptions world_options(const Flags& flags) {
  return {
      .rank = flags.rank,
      .size = kNumRanks,
      .local_rank = flags.rank,
      .local_size = kNumRanks,
      .store = Store::file(flags.store, kNumRanks),
      .device = at::kCPU,
      .timeout = std::chrono::seconds(20),
      .logger = Logger([](const LogRecord&) {}, LogLevel::off)};
}

// Saves with the Accelerator's functions.
class AcceleratorSaver {
 public:
  explicit AcceleratorSaver(const Flags& flags)
      : is_asynchronous_(flags.mode == "async"),
        accelerator_(options_of(flags)),
        net_(torch::nn::LinearOptions(kColumns, kRows).bias(false)),
        adam_(net_->parameters(), 1e-3),
        prepared_(accelerator_.prepare(net_, adam_)) {
    accelerator_.register_for_checkpointing(number_);
  }

  // Returns the number of the loaded save; -1 if there is no checkpoint.
  std::int64_t load() {
    if (!accelerator_.checkpoints().latest()) return -1;
    accelerator_.load_state({.verify = true});
    const auto& state = static_cast<const torch::optim::AdamParamState&>(
        *adam_.state().at(net_->weight.unsafeGetTensorImpl()));
    if (!net_->weight.equal(values(number_.value, 0)) ||
        !state.exp_avg().equal(values(number_.value, 1)) ||
        !state.exp_avg_sq().equal(values(number_.value, 2)) ||
        state.step() != number_.value) {
      end_as("wrong", "number " + std::to_string(number_.value));
    }
    return number_.value;
  }

  void save(std::int64_t number) {
    const torch::NoGradGuard no_grad;
    number_.value = number;
    net_->weight.copy_(values(number, 0));
    auto& slot = adam_.state()[net_->weight.unsafeGetTensorImpl()];
    auto state = std::make_unique<torch::optim::AdamParamState>();
    state->step(number);
    state->exp_avg(values(number, 1));
    state->exp_avg_sq(values(number, 2));
    slot = std::move(state);
    const SaveTicket ticket =
        accelerator_.save_state({.asynchronous = is_asynchronous_});
    if (is_asynchronous_) {
      // Training goes on during the save.
      net_->weight.zero_();
      if (last_) last_->wait();
      if (last_) report(number - 1);
      last_ = ticket;
    } else {
      report(number);
    }
  }

 private:
  static AcceleratorOptions options_of(const Flags& flags) {
    AcceleratorOptions options;
    options.world = world_options(flags);
    options.project_configuration = {
        .project_dir = flags.directory,
        .automatic_checkpoint_naming = true,
        .total_limit = flags.keep};
    return options;
  }
  static void report(std::int64_t number) {
    std::cout << "saved " << number << std::endl;
  }

  bool is_asynchronous_;
  Accelerator accelerator_;
  torch::nn::Linear net_;
  accelerate::optim::Adam adam_;
  std::tuple<Model<torch::nn::LinearImpl>, Optimizer> prepared_;
  Number number_;
  std::optional<SaveTicket> last_;
};

// Saves a sharded tensor: each rank has half of the rows.
class ShardedSaver {
 public:
  explicit ShardedSaver(const Flags& flags)
      : flags_(flags),
        world_(world_options(flags)),
        group_(world_, "saves", {0, 1}) {}

  std::int64_t load() {
    const auto entries = detail::list_checkpoints(flags_.directory);
    const auto* const newest = detail::newest_of(entries);
    if (newest == nullptr) return -1;
    const detail::CheckpointReader checkpoint(
        fs::path(flags_.directory) / newest->name);
    checkpoint.verify();
    const torch::Tensor found = torch::empty({kRows, kColumns});
    detail::read_into(
        checkpoint.tensors("model"),
        {{"weight", found, detail::Layout::unsharded({kRows, kColumns})}});
    if (!found.equal(values(*newest->number, 0))) {
      end_as("wrong", newest->name);
    }
    return *newest->number;
  }

  void save(std::int64_t number) {
    detail::SaveJob job;
    job.target =
        fs::path(flags_.directory) / ("checkpoint_" + std::to_string(number));
    job.rank = flags_.rank;
    job.num_processes = kNumRanks;
    job.iteration = number;
    job.disk = detail::make_file_system();
    const auto plan = detail::plan_retention(
        detail::list_checkpoints(flags_.directory),
        job.target.filename().string(),
        flags_.keep);
    if (group_.is_leader()) {
      for (const std::string& old : plan->deleted) {
        job.deleted.push_back(fs::path(flags_.directory) / old);
      }
    }
    detail::Layout rows = detail::Layout::unsharded({kRows, kColumns});
    rows.offset = {flags_.rank * kRows / 2, 0};
    rows.extent = {kRows / 2, kColumns};
    rows.split_axes = {Axis::shard};
    job.contents.sections.push_back(
        {"model",
         {{"weight",
           values(number, 0).narrow(0, rows.offset[0], kRows / 2),
           rows,
           true}},
         {}});
    detail::CheckpointWriter(std::move(job), group_).write();
    std::cout << "saved " << number << std::endl;
  }

 private:
  Flags flags_;
  World world_;
  detail::StoreGroup group_;
};

template <class Saver>
void work(const Flags& flags) {
  Saver saver(flags);
  std::int64_t number = -1;
  try {
    number = saver.load();
  } catch (const std::exception& error) {
    std::string text = error.what();
    for (char& c : text) c = c == '\n' ? ' ' : c;
    end_as("unloadable", text);
  }
  std::cout << "loaded " << number << std::endl;
  while (true) saver.save(++number);
}

int run_worker(const Flags& flags) {
  torch::set_num_threads(1);
  try {
    flags.mode == "sharded" ? work<ShardedSaver>(flags)
                            : work<AcceleratorSaver>(flags);
  } catch (const std::exception&) {
    // Expected: the other rank was killed.
  }
  return 0;
}

// A worker process and its output.
class Worker {
 public:
  Worker(const char* program, const Flags& flags, int rank) {
    std::vector<std::string> command{
        program,
        "--mode",
        flags.mode,
        "--keep",
        std::to_string(flags.keep),
        "--directory",
        flags.directory,
        "--store",
        flags.store,
        "--rank",
        std::to_string(rank)};
    std::vector<char*> arguments;
    for (std::string& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) std::exit(2);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    if (posix_spawn(
            &pid_, program, &actions, nullptr, arguments.data(), environ) !=
        0) {
      std::exit(2);
    }
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    out_ = ends[0];
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    kill();
    waitpid(pid_, nullptr, 0);
    close(out_);
  }

  void kill() const { ::kill(pid_, SIGKILL); }
  /// The next line of output; nullopt if the worker ended.
  std::optional<std::string> line() {
    while (true) {
      const std::size_t end = text_.find('\n');
      if (end != std::string::npos) {
        std::string found = text_.substr(0, end);
        text_.erase(0, end + 1);
        return found;
      }
      char buffer[4096];
      const ssize_t got = read(out_, buffer, sizeof buffer);
      if (got <= 0) return std::nullopt;
      text_.append(buffer, static_cast<std::size_t>(got));
    }
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  std::string text_;
};

int run_trials(const char* program, Flags flags) {
  std::mt19937 random(flags.seed);
  const auto draw = [&](int most) {
    return std::uniform_int_distribution<int>(0, most)(random);
  };
  constexpr int kTrialsInADirectory = 20;
  int unloadable = 0, nothing = 0, wrong = 0, lost = 0, done = 0, saves = 0;
  std::optional<TemporaryDirectory> directory;
  std::int64_t promised = -1;
  // One more start than kills, so that every outcome is loaded.
  for (int trial = 0; trial <= flags.trials; ++trial) {
    if (!directory) directory.emplace();
    flags.directory = (*directory / "project").string();
    fs::create_directories(flags.directory);
    const TemporaryDirectory rendezvous;
    flags.store = (rendezvous / "store").string();
    {
      Worker first(program, flags, 0), second(program, flags, 1);
      const auto loaded = first.line();
      if (!loaded) {
        std::cerr << "a worker failed before it loaded\n";
        return 2;
      }
      if (loaded->starts_with("unloadable")) ++unloadable;
      if (loaded->starts_with("wrong")) ++wrong;
      if (loaded->starts_with("loaded ")) {
        const std::int64_t number = std::stoll(loaded->substr(7));
        if (number < 0 && promised >= 0) ++nothing;
        if (number < promised && number >= 0) ++lost;
      } else {
        std::cerr << *loaded << '\n';
      }
      if (trial == flags.trials) break;
      // A save takes tens of milliseconds.
      std::this_thread::sleep_for(std::chrono::microseconds(draw(120'000)));
      const int victim = draw(2);  // 2: both
      if (victim != 1) first.kill();
      if (victim != 0) second.kill();
      if (victim != 2)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      first.kill();
      second.kill();
      promised = loaded->starts_with("loaded ") ? std::stoll(loaded->substr(7))
                                                : std::int64_t{-1};
      while (const auto line = first.line()) {
        if (!line->starts_with("saved ")) continue;
        promised = std::max(
            promised, static_cast<std::int64_t>(std::stoll(line->substr(6))));
        ++saves;
      }
      ++done;
    }
    if (!(trial + 1 < flags.trials) || (trial + 1) % kTrialsInADirectory != 0) {
      continue;
    }
    // Loads the last outcome of this directory, too.
    {
      const TemporaryDirectory other;
      flags.store = (other / "store").string();
      Worker first(program, flags, 0), second(program, flags, 1);
      const auto loaded = first.line();
      if (!loaded || !loaded->starts_with("loaded ")) {
        ++unloadable;
        std::cerr << loaded.value_or("nothing") << '\n';
      } else if (std::stoll(loaded->substr(7)) < promised) {
        ++lost;
      }
    }
    directory.emplace();
    promised = -1;
  }
  std::cout << "{\"mode\": \"" << flags.mode << "\", \"keep\": " << flags.keep
            << ", \"kills\": " << done << ", \"saves_returned\": " << saves
            << ", \"newest_unloadable\": " << unloadable
            << ", \"nothing_loadable\": " << nothing
            << ", \"returned_but_lost\": " << lost
            << ", \"silently_wrong\": " << wrong << "}" << std::endl;
  return unloadable + nothing + wrong + lost == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Kills ranks while they save.", "crash_test");
  app.option_defaults()->always_capture_default();
  app.add_option("--trials", flags.trials, "kills");
  app.add_option("--mode", flags.mode, "sync, async or sharded")
      ->check(CLI::IsMember({"sync", "async", "sharded"}));
  app.add_option("--keep", flags.keep, "checkpoints to keep");
  app.add_option("--seed", flags.seed, "of the moments of the kills");
  app.add_option("--directory", flags.directory)->group("");
  app.add_option("--store", flags.store)->group("");
  app.add_option("--rank", flags.rank)->group("");
  CLI11_PARSE(app, argc, argv);
  if (!flags.store.empty()) return run_worker(flags);
  return run_trials(argv[0], flags);
}
