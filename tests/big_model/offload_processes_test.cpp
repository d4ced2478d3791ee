// Processes that fill and read one offload folder at once, or are killed while
// doing so. They run this program again with a test of their own.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <torch/torch.h>

#include <accelerate/big_model.h>
#include <accelerate/error.h>
#include <accelerate/offload.h>

#include "big_model/offload/offload_folder.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "support/temporary_directory.h"

namespace accelerate::offload_processes_test {

namespace fs = std::filesystem;
using testing::TemporaryDirectory;
using torch::Tensor;

constexpr const char* kJob = "ACCELERATE_TEST_OFFLOAD_JOB";
constexpr const char* kFolder = "ACCELERATE_TEST_OFFLOAD_FOLDER";
constexpr int kNumWeights = 6;
constexpr std::int64_t kNumElements = 20'000;

// All weights of one fill have the same value.
WeightList weights_of(int number) {
  WeightList list;
  for (int i = 0; i < kNumWeights; ++i)
    list.emplace_back(
        "weight" + std::to_string(i),
        torch::full({kNumElements}, static_cast<double>(number)));
  return list;
}

// Returns the number of the fill that a folder holds, and verifies checksums.
// Throws CheckpointError if another process changes the folder meanwhile.
int read_number(const fs::path& folder) {
  int number = -1;
  for (const auto& [name, stored] : detail::stored_in_offload_folder(folder)) {
    const Tensor value = torch::empty({kNumElements});
    detail::read_boxes(
        {{&stored,
          {safetensors::Shape(1, 0), stored.shape},
          detail::bytes_of(value)}});
    const int found = value[0].item<int>();
    if (!value.eq(found).all().item<bool>()) return -2;
    if (number >= 0 && number != found) return -3;
    number = found;
  }
  return number;
}

/// A process that runs this program with a job.
class Process {
 public:
  Process(const std::string& job, const fs::path& folder) {
    ::setenv(kJob, job.c_str(), 1);
    ::setenv(kFolder, folder.c_str(), 1);
    const std::vector<const char*> arguments{
        "/proc/self/exe",
        "--gtest_also_run_disabled_tests",
        "--gtest_filter=OffloadProcess.DISABLED_Job",
        nullptr};
    EXPECT_EQ(
        ::posix_spawn(
            &id_,
            arguments.front(),
            nullptr,
            nullptr,
            const_cast<char* const*>(arguments.data()),
            environ),
        0);
    ::unsetenv(kJob);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (status_) return;
    kill();
    wait();
  }
  // Returns its exit status, or 128 + signal if it was killed, like a shell.
  int wait() {
    if (!status_) take_status(0);
    const int status = status_.value_or(-1);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  bool is_running() {
    if (!status_) take_status(WNOHANG);
    return !status_;
  }
  void kill() const {
    if (id_ > 0) ::kill(id_, SIGKILL);
  }

 private:
  void take_status(int options) {
    int status = 0;
    const pid_t ended = ::waitpid(id_, &status, options);
    if (ended == id_) status_ = status;
    if (ended < 0) status_ = -1;
  }

  pid_t id_ = -1;
  std::optional<int> status_;
};

// "fill 3" writes fills 3 and 4 alternately. "fill on 3" does so until it is
// killed. "read" reads until a file "stop" appears beside the folder.
TEST(OffloadProcess, DISABLED_Job) {
  const char* const job = std::getenv(kJob);
  if (job == nullptr) GTEST_SKIP() << "not a job";
  const fs::path folder = std::getenv(kFolder);
  const std::string text = job;
  if (text.starts_with("fill ")) {
    const bool goes_on = text.starts_with("fill on ");
    const int number = std::stoi(text.substr(text.rfind(' ')));
    for (int i = 0; goes_on || i < 15; ++i)
      offload_state_dict(folder, weights_of(number + i % 2));
    return;
  }
  int num_read = 0;
  while (!fs::exists(folder.parent_path() / "stop")) {
    try {
      ASSERT_GE(read_number(folder), -1) << "a mixture of fills";
      ++num_read;
    } catch (const CheckpointError&) {
      // Another process is replacing files.
    }
  }
  std::ofstream(folder.parent_path() / "num_read") << num_read;
}

TEST(OffloadProcesses, FillAndReadOneFolderAtOnce) {
  const TemporaryDirectory directory(TemporaryDirectory::memory());
  const fs::path folder = directory / "offload";
  offload_state_dict(folder, weights_of(1));
  // A model that runs from the folder has its files open.
  struct AddImpl : torch::nn::Module {
    Tensor forward(const Tensor& x) { return x + weight0; }
    Tensor weight0 =
        register_parameter("weight0", torch::full({kNumElements}, 1.0), false);
  };
  const auto model = std::make_shared<AddImpl>();
  auto big = disk_offload(model, folder, {.prefetch_memory = 1});
  const Tensor x = torch::ones({kNumElements});
  Process reader("read", folder);
  Process one("fill 10", folder);
  Process other("fill 20", folder);
  const torch::NoGradGuard no_grad;
  for (int i = 0; i < 20; ++i) {
    big.dispatch().offload();
    EXPECT_TRUE(big(x).eq(2).all().item<bool>());
  }
  EXPECT_EQ(one.wait(), 0);
  EXPECT_EQ(other.wait(), 0);
  std::ofstream(directory / "stop") << "now";
  EXPECT_EQ(reader.wait(), 0);
  EXPECT_TRUE(big(x).eq(2).all().item<bool>());
  const int last = read_number(folder);
  EXPECT_TRUE(last == 10 || last == 20) << last;
  EXPECT_FALSE(fs::exists(folder / ".filling"));
}

TEST(OffloadProcesses, AKilledOneIsRepairedByTheNext) {
  const TemporaryDirectory directory(TemporaryDirectory::memory());
  const fs::path folder = directory / "offload";
  offload_state_dict(folder, weights_of(1));
  for (int round = 0; round < 4; ++round) {
    Process filling("fill on 10", folder);
    // An incomplete file shows that it is at work.
    while (filling.is_running() && !fs::exists(folder / ".filling"))
      std::this_thread::yield();
    filling.kill();
    EXPECT_EQ(filling.wait(), 128 + SIGKILL);
    if (fs::exists(folder / "index.json")) {
      EXPECT_GE(read_number(folder), -1);
    }
    offload_state_dict(folder, weights_of(round));
    EXPECT_EQ(read_number(folder), round);
    EXPECT_FALSE(fs::exists(folder / ".filling"));
  }
}

}  // namespace accelerate::offload_processes_test
