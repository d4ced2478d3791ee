// Effects of crashes, full disks, other processes and other programs on offload
// folders and on models that run from files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <torch/torch.h>

#include <accelerate/big_model.h>
#include <accelerate/empty_weights.h>
#include <accelerate/error.h>
#include <accelerate/weights.h>

#include "big_model/offload/offload_folder.h"
#include "big_model/offload/weight_dtype.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "support/expect_error.h"
#include "support/recorded_disk.h"
#include "support/temporary_directory.h"

namespace accelerate::offload_faults_test {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using detail::OffloadFolderWriter;
using testing::expect_error;
using testing::FailingDisk;
using testing::make_unsynced_disk;
using testing::RecordedDisk;
using testing::TemporaryDirectory;
using torch::Tensor;

/// During its lifetime, runs a change once, before the next read of any file.
class ChangeBeforeRead {
 public:
  explicit ChangeBeforeRead(std::function<void()> change) {
    const std::lock_guard lock(mutex());
    waiting() = std::move(change);
  }
  ChangeBeforeRead(const ChangeBeforeRead&) = delete;
  ChangeBeforeRead& operator=(const ChangeBeforeRead&) = delete;
  ~ChangeBeforeRead() {
    const std::lock_guard lock(mutex());
    waiting() = nullptr;
  }

  [[nodiscard]] static bool has_come() {
    const std::lock_guard lock(mutex());
    return waiting() == nullptr;
  }
  /// Called by the pread() below.
  static void before_read() {
    std::function<void()> change;
    {
      const std::lock_guard lock(mutex());
      change = std::exchange(waiting(), nullptr);
    }
    if (change) change();
  }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::function<void()>& waiting() {
    static std::function<void()> change;
    return change;
  }
};

// Weights by name. From one fill to the next, "a" changes, "b" gets another
// shape, "c" stays and "d/e" is added.
WeightList weights(int number) {
  const bool is_first = number == 0;
  WeightList list{
      {"a", torch::arange(6, torch::kFloat).view({2, 3}) + 100 * number},
      {"b", torch::full({is_first ? 4 : 7}, number, torch::kLong)},
      {"c", torch::ones({5})}};
  if (!is_first) list.emplace_back("d/e", torch::zeros({0}));
  return list;
}

void fill_folder(
    const std::shared_ptr<detail::FileSystem>& disk,
    const fs::path& folder,
    int number) {
  OffloadFolderWriter writer(disk, folder);
  for (const auto& [name, tensor] : weights(number)) {
    writer.put(
        name,
        detail::dtype_name(tensor.scalar_type()),
        detail::to_write(name, tensor));
  }
  writer.commit();
}

/// Reads everything in a folder's index and verifies checksums. Every weight
/// must come entirely from the first or second fill, and the two that differ
/// ("a" and "b") from the same one. Returns that fill's number; -1 if neither
/// is there.
int number_of(const fs::path& folder) {
  if (!fs::exists(folder / detail::kOffloadIndexName)) return -1;
  std::set<int> found;
  for (const auto& [name, stored] : detail::stored_in_offload_folder(folder)) {
    int number = -1;
    for (const int candidate : {0, 1}) {
      for (const auto& [wanted_name, wanted] : weights(candidate)) {
        if (wanted_name != name ||
            wanted.sizes() !=
                at::IntArrayRef(
                    detail::torch_shape(stored.dtype, stored.shape))) {
          continue;
        }
        const Tensor value = torch::empty_like(wanted);
        if (value.numel() > 0) {
          detail::read_boxes(
              {{&stored,
                {safetensors::Shape(stored.shape.size(), 0), stored.shape},
                detail::bytes_of(value)}});
        }
        if (value.equal(wanted)) number = candidate;
      }
    }
    EXPECT_GE(number, 0) << name << " is of neither fill";
    if (name == "a" || name == "b") found.insert(number);
  }
  EXPECT_LE(found.size(), 1U) << "weights of both fills are mixed";
  return found.empty() ? -1 : *found.begin();
}

class OffloadFolderCrash : public ::testing::TestWithParam<bool> {};

TEST_P(OffloadFolderCrash, LeavesNoWeightThatIsNotCompleteAndIsRepaired) {
  const TemporaryDirectory directory(TemporaryDirectory::memory());
  const fs::path root = directory / "disk";
  const fs::path folder = root / "offload";
  fs::create_directories(folder);
  const bool is_filled = GetParam();
  if (is_filled) fill_folder(make_unsynced_disk(), folder, 0);
  const auto disk = std::make_shared<RecordedDisk>(root);
  fill_folder(disk, folder, 1);
  ASSERT_EQ(number_of(folder), 1);

  std::size_t num_states = 0;
  std::size_t num_checks = 0;
  std::set<int> seen;
  for (std::size_t i = 0; i <= disk->num_operations(); ++i) {
    num_states += disk->for_each_state(
        i, directory / "state", [&](const fs::path& state) {
          seen.insert(number_of(state / "offload"));
          if (i == disk->num_operations()) {
            ASSERT_EQ(number_of(state / "offload"), 1);
          }
          // The next run detects and repairs what is missing.
          if (num_checks++ % 8 == 0) {
            fill_folder(make_unsynced_disk(), state / "offload", 1);
            ASSERT_EQ(number_of(state / "offload"), 1);
            ASSERT_FALSE(fs::exists(state / "offload" / ".filling"));
          }
        });
    if (HasFatalFailure()) return;
  }
  std::cout << disk->num_operations() << " operations, " << num_states
            << " states\n";
  EXPECT_EQ(seen, (is_filled ? std::set{-1, 0, 1} : std::set{-1, 1}));
}

INSTANTIATE_TEST_SUITE_P(
    Fills,
    OffloadFolderCrash,
    ::testing::Bool(),
    [](const auto& tested) { return tested.param ? "again" : "first"; });

class OffloadFolderFault : public ::testing::TestWithParam<int> {};

TEST_P(OffloadFolderFault, AtAnyCallIsAClearErrorAndIsRepaired) {
  for (const bool goes_on : {false, true}) {
    for (std::size_t call = 0;; ++call) {
      const TemporaryDirectory directory(TemporaryDirectory::memory());
      const fs::path folder = directory / "offload";
      fill_folder(make_unsynced_disk(), folder, 0);
      const auto disk =
          std::make_shared<FailingDisk>(call, GetParam(), goes_on);
      bool has_thrown = false;
      try {
        fill_folder(disk, folder, 1);
      } catch (const Error& error) {
        has_thrown = true;
        EXPECT_NE(
            std::string(error.what()).find(std::strerror(GetParam())),
            std::string::npos)
            << error.what();
      }
      EXPECT_FALSE(fs::exists(folder / ".filling")) << call;
      if (!has_thrown) {
        EXPECT_EQ(number_of(folder), 1) << call;
      } else {
        static_cast<void>(number_of(folder));
      }
      fill_folder(make_unsynced_disk(), folder, 1);
      EXPECT_EQ(number_of(folder), 1) << call;
      if (!disk->has_failed()) break;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Disk,
    OffloadFolderFault,
    ::testing::Values(ENOSPC, EIO, EROFS),
    [](const auto& tested) {
      return std::string(::strerrorname_np(tested.param));
    });

TEST(OffloadFolderWriters, TakeTurns) {
  const TemporaryDirectory directory(TemporaryDirectory::memory());
  const fs::path folder = directory / "offload";
  constexpr int kRounds = 10;
  std::vector<std::thread> threads;
  for (const int number : {0, 1}) {
    threads.emplace_back([&folder, number] {
      for (int i = 0; i < kRounds; ++i)
        fill_folder(make_unsynced_disk(), folder, number);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const int last = number_of(folder) == 0 ? 1 : 0;
  fill_folder(make_unsynced_disk(), folder, last);
  EXPECT_EQ(number_of(folder), last);
}

struct NetImpl : nn::Module {
  Tensor forward(const Tensor& x) {
    return head(torch::relu(middle(torch::relu(first(x)))));
  }
  nn::Linear first = register_module("first", nn::Linear(8, 256));
  nn::Linear middle = register_module("middle", nn::Linear(256, 320));
  nn::Linear head = register_module("head", nn::Linear(320, 4));
};
TORCH_MODULE(Net);

Net net_of(int number) {
  torch::manual_seed(number);
  return Net();
}

// Overwrites the last bytes, and advances the time enough for any file system
// to show it.
void scribble(const fs::path& file, char byte = 'x') {
  const auto time = fs::last_write_time(file);
  {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(-8, std::ios::end);
    for (int i = 0; i < 8; ++i) stream.put(byte);
  }
  fs::last_write_time(file, time + std::chrono::seconds(1));
}

std::string contents_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

class RunningModel : public ::testing::Test {
 protected:
  RunningModel() { torch::manual_seed(0); }

  /// A model that runs from its checkpoint's own file.
  DispatchedModel<Net> from_checkpoint(ByteSize memory) {
    save_model(*net_of(1), directory_ / "model");
    return load_checkpoint_and_dispatch(
        init_empty_weights([] { return Net(); }),
        directory_ / "model",
        {.device_map = DeviceMap{{"", "disk"}}, .prefetch_memory = memory});
  }
  [[nodiscard]] fs::path checkpoint() const {
    return directory_ / "model" / "model.safetensors";
  }
  /// A model that runs from an offload folder.
  DispatchedModel<Net> from_folder(ByteSize memory = 1) {
    return disk_offload(net_of(1), folder(), {.prefetch_memory = memory});
  }
  [[nodiscard]] fs::path folder() const { return directory_ / "offload"; }
  Tensor expected() { return net_of(1)(x_); }

  torch::NoGradGuard no_grad_;
  TemporaryDirectory directory_;
  Tensor x_ = torch::ones({2, 8});
};

TEST_F(RunningModel, SaysThatItsCheckpointWasChanged) {
  // With the large limit, all weights are in memory and can be pages of the
  // file.
  for (const ByteSize memory : {ByteSize(1), ByteSize("1GB")}) {
    auto big = from_checkpoint(memory);
    EXPECT_TRUE(big(x_).equal(expected()));
    EXPECT_TRUE(big(x_).equal(expected()));
    scribble(checkpoint());
    expect_error<CheckpointError>(
        [&] {
          static_cast<void>(big(x_));
          big.dispatch().offload();
          static_cast<void>(big(x_));
        },
        "model.safetensors was changed while a model reads its weights");
    expect_error<CheckpointError>(
        [&] { static_cast<void>(big(x_)); }, "was changed while");
    fs::remove_all(directory_ / "model");
  }
}

// The file changes after the fetch has checked it and before the read.
TEST_F(RunningModel, SaysThatAFileWasChangedWhileItIsRead) {
  // Small enough to be read, not mapped.
  nn::Sequential model(nn::Linear(8, 8));
  const Tensor wanted = model->forward(x_);
  const auto refuse = [&](const fs::path& file, const auto& forward) {
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(forward().equal(wanted));
    const ChangeBeforeRead change([&] { scribble(file); });
    expect_error<CheckpointError>([&] { static_cast<void>(forward()); }, "");
    EXPECT_TRUE(change.has_come());
  };
  save_model(*model, directory_ / "model");
  {
    auto big = load_checkpoint_and_dispatch(
        init_empty_weights([] { return nn::Sequential(nn::Linear(8, 8)); }),
        directory_ / "model",
        {.device_map = DeviceMap{{"", "disk"}},
         .prefetch_memory = ByteSize(1)});
    refuse(checkpoint(), [&] {
      big.dispatch().offload();
      return big.module()->forward(x_);
    });
  }
  auto big = disk_offload(model, folder(), {.prefetch_memory = ByteSize(1)});
  refuse(folder() / "0.weight.dat", [&] {
    big.dispatch().offload();
    return big.module()->forward(x_);
  });
}

// Another program truncates or overwrites the file while operators use weights
// that are mapped from it.
TEST_F(RunningModel, GoesOnWithWhatItHasIfItsMappedFileIsTruncated) {
  for (const bool truncates : {true, false}) {
    SCOPED_TRACE(truncates);
    auto big = from_checkpoint("1GB");
    EXPECT_TRUE(big(x_).equal(expected()));
    // The second forward maps the cached file.
    static_cast<void>(contents_of(checkpoint()));
    big.dispatch().offload();
    EXPECT_TRUE(big(x_).equal(expected()));
    if (big.stats().mapped_bytes == 0)
      GTEST_SKIP() << "this file system has no leases";
    if (truncates) {
      fs::resize_file(checkpoint(), 1000);
    } else {
      std::ofstream(checkpoint()) << "something else";
    }
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(big(x_).equal(expected()));
    big.dispatch().offload();
    expect_error<CheckpointError>(
        [&] { static_cast<void>(big(x_)); }, "model.safetensors");
    fs::remove_all(directory_ / "model");
  }
}

// The same for mapped weights that are not offloaded.
TEST_F(RunningModel, KeepsMappedWeightsIfTheirFileIsTruncated) {
  save_model(*net_of(1), directory_ / "model");
  Net net = init_empty_weights([] { return Net(); });
  load_checkpoint_in_model(*net, directory_ / "model");
  fs::resize_file(checkpoint(), 1000);
  EXPECT_TRUE(net(x_).equal(expected()));
  net->head->weight.zero_();
  EXPECT_FALSE(net(x_).equal(expected()));
}

// A file without checksums is compared with what was read first.
TEST_F(RunningModel, ComparesACheckpointThatWasTouchedOrWrittenAnew) {
  auto big = from_checkpoint(1);
  EXPECT_TRUE(big(x_).equal(expected()));
  fs::last_write_time(
      checkpoint(), fs::last_write_time(checkpoint()) + std::chrono::hours(1));
  EXPECT_TRUE(big(x_).equal(expected()));
  const auto time = fs::last_write_time(checkpoint());
  const std::string before = contents_of(checkpoint());
  std::ofstream(checkpoint(), std::ios::binary) << before;
  EXPECT_TRUE(big(x_).equal(expected()));
  // New contents with the size and time of the old contents.
  scribble(checkpoint());
  fs::last_write_time(checkpoint(), time);
  expect_error<CheckpointError>(
      [&] { static_cast<void>(big(x_)); }, "was changed while");
  std::ofstream(checkpoint(), std::ios::binary) << before;
  EXPECT_TRUE(big(x_).equal(expected()));
}

TEST_F(RunningModel, SaysThatItsFileWasTruncated) {
  {
    auto big = from_checkpoint(1);
    static_cast<void>(big(x_));
    fs::resize_file(checkpoint(), fs::file_size(checkpoint()) / 2);
    expect_error<CheckpointError>(
        [&] { static_cast<void>(big(x_)); }, "was changed while");
  }
  auto big = from_folder();
  static_cast<void>(big(x_));
  fs::resize_file(folder() / "middle.weight.dat", 100);
  expect_error<CheckpointError>(
      [&] { static_cast<void>(big(x_)); },
      "middle.weight.dat is shorter than it should be");
}

TEST_F(RunningModel, ComparesAFolderThatWasTouched) {
  auto big = from_folder();
  EXPECT_TRUE(big(x_).equal(expected()));
  const fs::path file = folder() / "middle.weight.dat";
  fs::last_write_time(file, fs::last_write_time(file) + std::chrono::hours(1));
  EXPECT_TRUE(big(x_).equal(expected()));
  const std::string before = contents_of(file);
  scribble(file);
  expect_error<CheckpointError>(
      [&] { static_cast<void>(big(x_)); },
      "the contents of middle.weight.dat have changed");
  // Once the file is restored, the model works again.
  std::ofstream(file, std::ios::binary) << before;
  EXPECT_TRUE(big(x_).equal(expected()));
}

TEST_F(RunningModel, KeepsFilesThatAreReplacedOrRemoved) {
  auto big = from_folder();
  EXPECT_TRUE(big(x_).equal(expected()));
  // Another process fills the folder with the weights of another model.
  WeightList others;
  const Net other = net_of(2);
  for (const auto& item : other->named_parameters())
    others.emplace_back(item.key(), item.value());
  offload_state_dict(folder(), others);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(big(x_).equal(expected()));
  fs::remove_all(folder());
  EXPECT_TRUE(big(x_).equal(expected()));
}

TEST_F(RunningModel, WarnsOfTheFolderOfAnotherModel) {
  static_cast<void>(from_folder());
  Net other = net_of(2);
  ::testing::internal::CaptureStderr();
  static_cast<void>(
      disk_offload(other, folder(), {.execution_device = torch::kCPU}));
  EXPECT_NE(
      ::testing::internal::GetCapturedStderr().find(
          "has other values for first.weight, first.bias, middle.weight"),
      std::string::npos);
  // A model without values takes the folder's values.
  auto big = disk_offload(
      init_empty_weights([] { return Net(); }),
      folder(),
      {.execution_device = torch::kCPU});
  EXPECT_TRUE(big(x_).equal(expected()));
  nn::Linear narrow(8, 9);
  nn::Sequential model;
  model->push_back("first", narrow);
  expect_error<ConfigError>(
      [&] { static_cast<void>(disk_offload(model, folder())); },
      "weights belong to another model");
}

TEST_F(RunningModel, RefusesTheFolderOfAnotherModelIfAsked) {
  static_cast<void>(from_folder());
  Net other = net_of(2);
  const auto before = fs::last_write_time(folder() / "index.json");
  expect_error<ConfigError>(
      [&] {
        static_cast<void>(disk_offload(
            other,
            folder(),
            {.execution_device = torch::kCPU, .strict_offload_dir = true}));
      },
      "has other values for first.weight, first.bias, middle.weight");
  EXPECT_TRUE(other(x_).equal(net_of(2)(x_)));
  save_model(*net_of(2), directory_ / "other");
  expect_error<ConfigError>(
      [&] {
        static_cast<void>(load_checkpoint_and_dispatch(
            init_empty_weights([] { return Net(); }),
            directory_ / "other",
            {.device_map = DeviceMap{{"", "disk"}},
             .offload_folder = folder(),
             .strict_offload_folder = true}));
      },
      "has other values for");
  EXPECT_EQ(fs::last_write_time(folder() / "index.json"), before);
  EXPECT_FALSE(fs::exists(folder() / ".filling"));
  // The folder is accepted for the same model.
  auto big = disk_offload(
      net_of(1),
      folder(),
      {.execution_device = torch::kCPU, .strict_offload_dir = true});
  EXPECT_TRUE(big(x_).equal(expected()));
}

TEST_F(RunningModel, OpensMoreFilesThanTheSoftLimit) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  constexpr rlim_t kFew = 64;
  if (before.rlim_max < 4 * kFew) GTEST_SKIP() << "the hard limit is too low";
  nn::Sequential model;
  for (int i = 0; i < 100; ++i) model->push_back(nn::Linear(8, 8));
  const Tensor wanted = model->forward(x_);
  rlimit few = before;
  few.rlim_cur = kFew;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  {
    const auto big = disk_offload(model, folder());
    EXPECT_TRUE(model->forward(x_).equal(wanted));
  }
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

// Each file of a folder, in place of which something else has its name.
TEST(OffloadFolders, RefuseWhatIsNotAFile) {
  const std::vector<std::string> names{
      "index.json", "checksums.json", "weight.dat"};
  const auto make_pipe = [](const fs::path& file) {
    EXPECT_EQ(::mkfifo(file.c_str(), 0600), 0);
  };
  const auto make_device = [](const fs::path& file) {
    fs::create_symlink("/dev/zero", file);
  };
  const auto make_directory = [](const fs::path& file) {
    fs::create_directory(file);
  };
  const std::vector<
      std::pair<std::string, std::function<void(const fs::path&)>>>
      kinds{
          {"a pipe", make_pipe},
          {"a device", make_device},
          {"a directory", make_directory}};
  for (const std::string& name : names) {
    for (const auto& [kind, make] : kinds) {
      const TemporaryDirectory folder;
      nn::Linear linear(3, 2);
      offload_state_dict(folder.path(), {{"weight", linear->weight.detach()}});
      const fs::path file = folder / name;
      fs::remove(file);
      make(file);
      const std::string phrase = name == "weight.dat"
          ? "is not a regular file"
          : "must be a regular file, but is " + kind;
      expect_error<Error>(
          [&] {
            nn::Linear kept(nn::LinearOptions(3, 2).bias(false));
            const auto dispatch = dispatch_module(
                *kept,
                {.device_map = {{"", "disk"}}, .offload_dir = folder.path()});
            const torch::NoGradGuard no_grad;
            kept(torch::ones({1, 3}));
          },
          phrase);
      expect_error<Error>(
          [&] {
            const OffloadedWeightsLoader loader({.save_folder = folder.path()});
            static_cast<void>(loader.at("weight"));
            if (name == "checksums.json")
              static_cast<void>(detail::read_offload_folder(folder.path()));
          },
          phrase);
      if (name == "weight.dat") continue;
      expect_error<Error>(
          [&] { offload_weight(linear->weight, "other", folder.path()); },
          phrase);
    }
  }
}

}  // namespace accelerate::offload_faults_test

// Intercepts the library's file reads.
extern "C" ssize_t pread(int file, void* out, std::size_t size, off_t offset) {
  accelerate::offload_faults_test::ChangeBeforeRead::before_read();
  return ::syscall(SYS_pread64, file, out, size, offset);
}
