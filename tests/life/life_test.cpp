// Every public method of every public class, called on an object that was just
// made, that was used before, whose accelerator is gone, that has ended, whose
// start has failed, and that was moved from. A call may return, or throw one of
// the library's errors; it may not crash, or fail anywhere inside LibTorch.
// life_calls.py writes the calls, and sees to it that no method is forgotten.
#include <array>
#include <chrono>
#include <csetjmp>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/util/Type.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <accelerate/accelerate.h>
#include <accelerate/attention.h>
#include <accelerate/big_model.h>
#include <accelerate/context_parallel.h>
#include <accelerate/datasets.h>
#include <accelerate/elastic.h>
#include <accelerate/experts.h>
#include <accelerate/exported_model.h>
#include <accelerate/hooks.h>
#include <accelerate/local_sgd.h>
#include <accelerate/memory.h>
#include <accelerate/metrics.h>
#include <accelerate/offload.h>
#include <accelerate/optimizers.h>
#include <accelerate/parallel_layers.h>
#include <accelerate/pipeline.h>
#include <accelerate/planning.h>
#include <accelerate/prepare_pippy.h>
#include <accelerate/profiler.h>
#include <accelerate/progress.h>
#include <accelerate/quantize.h>
#include <accelerate/quantized_model.h>
#include <accelerate/safetensors.h>
#include <accelerate/samplers.h>
#include <accelerate/save_on_disk.h>
#include <accelerate/schedulers.h>
#include <accelerate/sequence_shards.h>
#include <accelerate/token_collate.h>
#include <accelerate/torch_loader.h>

#include "support/temporary_directory.h"

namespace accelerate {
namespace life_test {

using torch::nn::LinearImpl;

template <class T>
struct Call {
  const char* text;
  void (*make)(T&);
};
template <class T>
using Calls = std::vector<Call<T>>;

// --- What calls are given -------------------------------------------------

const std::filesystem::path& folder() {
  static const testing::TemporaryDirectory directory;
  return directory.path();
}

AcceleratorOptions on_cpu() {
  AcceleratorOptions options;
  options.cpu = true;
  options.project_dir = (folder() / "project").string();
  options.journal = false;
  return options;
}

at::Tensor ones() { return torch::ones({1, 2}); }
at::Tensor loss() { return ones().requires_grad_().sum(); }
std::vector<at::Tensor> tensors() { return {ones()}; }
std::vector<std::int64_t> indices() { return {0}; }
at::Generator& generator() {
  static at::Generator made = at::detail::createCPUGenerator(1);
  return made;
}
std::ostream& stream() {
  static std::ostringstream made;
  return made;
}
std::span<std::byte> bytes() {
  static std::array<std::byte, 4> made = {};
  return made;
}
std::int64_t& number() {
  static std::int64_t made = 0;
  return made;
}
std::vector<at::Tensor> tokens() { return {torch::ones({3}, at::kLong)}; }
TransformerShape shape() {
  return {.num_layers = 1, .hidden_size = 8, .num_heads = 1, .vocabulary = 8};
}
torch::nn::Linear net() { return torch::nn::Linear(2, 1); }
auto make_loader() {
  return DataLoader(TensorDataset(torch::ones({4, 2})), {.batch_size = 2});
}
using Loader = decltype(make_loader());

struct Registered {
  [[nodiscard]] StateDict state_dict() const { return {{"a", true}}; }
  void load_state_dict(const StateDict& state) {
    static_cast<void>(state.get<bool>("a"));
  }
};
Registered& registered() {
  static std::list<Registered> made;
  return made.emplace_back();
}

// A program that trains. Without its accelerator, what it owns is still there.
struct Training {
  Accelerator accelerator = Accelerator(on_cpu());
  torch::nn::Linear net{2, 1};
  torch::optim::SGD sgd{net->parameters(), 0.1};
  optim::StepLR schedule{sgd, {.step_size = 10}};
  Model<LinearImpl> model = accelerator.prepare(net);
  Optimizer optimizer = accelerator.prepare(sgd);
  Scheduler scheduler = accelerator.prepare(schedule);
  Loader loader = accelerator.prepare(make_loader());
};
Training& stand() {
  static Training* made = nullptr;
  if (made == nullptr) made = new Training();
  return *made;
}
torch::optim::SGD& sgd() { return stand().sgd; }
const ClusterSpeeds& speeds() {
  static const ClusterSpeeds measured =
      measure_cluster(stand().accelerator.world(), shape(), 8, 8, 0);
  return measured;
}

#include "life_calls.h"

// --- How calls end --------------------------------------------------------

sigjmp_buf after_crash;
void leave_crash(int signal) { siglongjmp(after_crash, signal); }

// What is wrong with how a call ended, or "".
std::string fault_of(const std::function<void()>& call) {
  if (const int signal = sigsetjmp(after_crash, 1))
    return std::string("crashed: ") + strsignal(signal);
  try {
    call();
  } catch (const InternalError& error) {
    return std::string("is no fault of the library: ") + error.what();
  } catch (const Error&) {
    // Says what the caller did.
  } catch (const c10::Error& error) {
    return std::string("failed inside LibTorch: ") +
        error.what_without_backtrace();
  } catch (const std::exception& error) {
    return std::string("threw something else: ") + error.what();
  }
  return "";
}

// The calls of T: a parameter of this type is not deduced.
template <class T>
using Add = std::type_identity_t<void (*)(Calls<T>&)>;

template <class T>
void try_calls(Add<T> add_calls, T& object, const std::string& state) {
  Calls<T> calls;
  add_calls(calls);
  for (const Call<T>& call : calls) {
    const std::string which =
        std::string(c10::demangle_type<T>()) + ", " + state + ": " + call.text;
    std::cout << which << std::endl;  // says which one hangs
    const std::string fault = fault_of([&] { call.make(object); });
    EXPECT_EQ(fault, "") << which;
  }
}

// Objects that were just made, were used, and were moved from.
template <class Make, class T = std::invoke_result_t<Make&>>
void try_life(Add<T> add_calls, Make make) {
  T first = make();
  try_calls<T>(add_calls, first, "just made");
  try_calls<T>(add_calls, first, "used");
  if constexpr (std::is_move_constructible_v<T>) {
    T second = make();
    T third = std::move(second);
    try_calls<T>(add_calls, second, "moved from");
    try_calls<T>(add_calls, third, "moved to");
    if constexpr (std::is_move_assignable_v<T>) {
      T fourth = make();
      third = std::move(fourth);
      try_calls<T>(add_calls, fourth, "moved from by assignment");
      fourth = std::move(third);
      try_calls<T>(add_calls, fourth, "assigned to again");
    }
  }
}

// A handle of an accelerator that lives, and of one that is gone.
template <class Take, class T = std::invoke_result_t<Take&, Training&>>
void try_handle(Add<T> add_calls, Take take) {
  std::list<Training> trainings;
  const auto make = [&] { return take(trainings.emplace_back()); };
  try_life(add_calls, make);
  // Neither torch::nn::Linear nor torch::optim::SGD go with the accelerator.
  const torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  std::optional<Training> gone(std::in_place);
  T handle = take(*gone);
  gone->accelerator.end_training();
  try_calls<T>(add_calls, handle, "of an accelerator that has ended");
  gone->accelerator.free_memory();
  try_calls<T>(add_calls, handle, "of an accelerator without memory");
  gone->accelerator = Accelerator(on_cpu());
  try_calls<T>(add_calls, handle, "of an accelerator that is gone");
}

class Life : public ::testing::Test {
 protected:
  void SetUp() override {
    static_cast<void>(stand());
    struct sigaction action = {};
    action.sa_handler = leave_crash;
    action.sa_flags = SA_NODEFER;
    for (std::size_t i = 0; i < kSignals.size(); ++i)
      sigaction(kSignals[i], &action, &previous_[i]);
  }
  void TearDown() override {
    for (std::size_t i = 0; i < kSignals.size(); ++i)
      sigaction(kSignals[i], &previous_[i], nullptr);
  }

 private:
  static constexpr std::array kSignals = {SIGSEGV, SIGABRT, SIGFPE, SIGBUS};
  std::array<struct sigaction, kSignals.size()> previous_ = {};
};

// --- Handles --------------------------------------------------------------

TEST_F(Life, Accelerator) {
  try_life(add_calls_of_Accelerator, [] { return Accelerator(on_cpu()); });
  const std::vector<std::pair<std::string, std::function<void(Accelerator&)>>>
      states = {
          {"after finish()", [](auto& it) { it.finish(); }},
          {"after end_training()", [](auto& it) { it.end_training(); }},
          {"after free_memory()", [](auto& it) { it.free_memory(); }},
          {"after a load_state() that failed",
           [](auto& it) { it.load_state(folder() / "nowhere"); }},
          {"after a prepare() that failed",
           [](auto& it) { it.prepare(torch::nn::Linear(nullptr)); }},
          {"after an init_trackers() that failed",
           [](auto& it) { it.init_trackers("", {}, {{"nobody", {}}}); }}};
  for (const auto& [state, reach] : states) {
    Accelerator accelerator(on_cpu());
    EXPECT_EQ(fault_of([&, &reach = reach] { reach(accelerator); }), "")
        << state;
    try_calls<Accelerator>(add_calls_of_Accelerator, accelerator, state);
  }
  AcceleratorOptions wrong = on_cpu();
  wrong.gradient_accumulation_steps = -1;
  EXPECT_THROW(Accelerator{wrong}, ConfigError);
  Accelerator next(on_cpu());
  try_calls<Accelerator>(
      add_calls_of_Accelerator, next, "after a constructor that failed");
}

TEST_F(Life, HandlesOfAnAccelerator) {
  try_handle(add_calls_of_Model, [](auto& it) { return it.model; });
  try_handle(add_calls_of_Optimizer, [](auto& it) { return it.optimizer; });
  try_handle(add_calls_of_Scheduler, [](auto& it) { return it.scheduler; });
  try_handle(add_calls_of_GradientState, [](auto& it) {
    return it.accelerator.gradient_state();
  });
  try_handle(add_calls_of_Trackers, [](auto& it) {
    return it.accelerator.trackers();
  });
  try_handle(add_calls_of_Checkpoints, [](auto& it) {
    return it.accelerator.checkpoints();
  });
  try_handle(add_calls_of_NamedLogger, [](auto& it) {
    return it.accelerator.world().logger("life", LogLevel::off);
  });
  try_handle(add_calls_of_Mesh, [](auto& it) { return it.accelerator.mesh(); });
  try_handle(
      add_calls_of_World, [](auto& it) { return it.accelerator.world(); });
  try_handle(add_calls_of_Group, [](auto& it) {
    return it.accelerator.world().group();
  });
  try_handle(add_calls_of_Store, [](auto& it) {
    return it.accelerator.world().store();
  });
  try_handle(
      add_calls_of_Profile, [](auto& it) { return it.accelerator.profile(); });
  try_handle(add_calls_of_ProfileResults, [](auto& it) {
    Profile profile = it.accelerator.profile();
    profile.step();
    profile.stop();
    return profile.results();
  });
  try_handle(add_calls_of_SaveTicket, [](auto& it) {
    return it.accelerator.save_state(folder() / "saved");
  });
  try_handle(add_calls_of_SaveTicket, [](auto& it) {
    return it.accelerator.save_state(
        folder() / "saved", {.asynchronous = true});
  });
  try_handle(add_calls_of_HookHandle, [](auto& it) {
    return it.accelerator.checkpoints().register_save_state_pre_hook(
        [](auto&) {});
  });
  try_handle(add_calls_of_ContextParallelScope, [](auto& it) {
    return it.accelerator.maybe_context_parallel({ones()}, {1});
  });
  try_handle(add_calls_of_LocalSGD, [](auto& it) {
    return LocalSGD(it.accelerator, it.model, {.local_sgd_steps = 2});
  });
}

TEST_F(Life, Scopes) {
  std::optional<Training> training(std::in_place);
  auto window = training->accelerator.accumulate(training->model);
  auto silent = training->accelerator.no_sync(training->model);
  auto full = training->model.full_parameters();
  auto casts = training->accelerator.autocast();
  FullParameters moved = std::move(full);
  training.reset();
}

TEST_F(Life, WorldsAndStores) {
  try_life(add_calls_of_World, [] { return World({.cpu = true}); });
  try_life(add_calls_of_Group, [] { return Group(); });
  try_life(add_calls_of_Store, [] { return Store::in_memory(); });
  try_life(add_calls_of_Store, [] {
    return Store::file((folder() / "store").string(), 1);
  });
  try_life(add_calls_of_Logger, [] {
    return Logger([](const LogRecord&) {}, LogLevel::debug);
  });
  try_life(
      add_calls_of_Logger, [] { return Logger(nullptr, LogLevel::debug); });
  try_life(add_calls_of_GradScaler, [] { return GradScaler(); });
  try_life(
      add_calls_of_GradScaler, [] { return GradScaler({.enabled = false}); });
  std::optional<ElasticContext> kept;
  run_elastic([&](ElasticContext& context) {
    kept = context;
    try_life(add_calls_of_ElasticContext, [&] { return context; });
  });
  try_calls<ElasticContext>(
      add_calls_of_ElasticContext, *kept, "after run_elastic()");
}

TEST_F(Life, Profile) {
  const Accelerator& accelerator = stand().accelerator;
  Profile stopped = accelerator.profile();
  stopped.stop();
  try_calls<Profile>(add_calls_of_Profile, stopped, "after stop()");
  Profile first = accelerator.profile();
  // Only one can record at a time.
  EXPECT_EQ(
      fault_of([&] {
        Profile second = accelerator.profile();
        try_calls<Profile>(add_calls_of_Profile, second, "as the second");
      }),
      "");
  try_calls<Profile>(add_calls_of_Profile, first, "after another has begun");
}

TEST_F(Life, Progress) {
  for (const bool disable : {false, true}) {
    const ProgressOptions options = {.total = 3, .disable = disable};
    try_life(add_calls_of_Progress, [&] { return Progress(options); });
    try_life(add_calls_of_ProgressRange, [&] {
      return progress(std::vector<int>{1, 2, 3}, options);
    });
    auto range = progress(std::vector<int>{1, 2, 3}, options);
    try_life(add_calls_of_ProgressRangeIterator, [&] { return range.begin(); });
    Progress closed(options);
    closed.close();
    try_calls<Progress>(add_calls_of_Progress, closed, "after close()");
  }
}

TEST_F(Life, BatchSizeSearch) {
  try_life(add_calls_of_BatchSizeSearch, [] { return BatchSizeSearch(); });
  BatchSizeSearch failed({.starting_batch_size = 1});
  EXPECT_EQ(
      fault_of(
          [&] { failed([](std::int64_t) -> int { throw std::bad_alloc(); }); }),
      "");
  try_calls<BatchSizeSearch>(
      add_calls_of_BatchSizeSearch, failed, "after no size has worked");
}

TEST_F(Life, Plans) {
  try_life(add_calls_of_MemoryPlan, [] {
    return MemoryPlan({}, [](const MemoryCase& at) {
      return MemoryRow{.at = at, .weights = 1};
    });
  });
  try_life(add_calls_of_LayoutPlan, [] {
    return plan_layout(shape(), {.num_ranks = 1, .cluster = speeds()});
  });
  try_life(add_calls_of_LayoutPlan, [] {
    return LayoutPlan(shape(), {}, {}, {}, 0);
  });
  try_life(add_calls_of_SequenceShards, [] { return SequenceShards(4, 2); });
  try_life(add_calls_of_DeviceMap, [] { return DeviceMap({{"", "cpu"}}); });
  try_life(add_calls_of_DeviceMap, [] { return DeviceMap(); });
  try_life(add_calls_of_OffloadIndex, [] { return OffloadIndex(); });
  try_life(add_calls_of_SavedTensorFile, [] {
    return SavedTensorFile(
        {.directory = folder(), .directory_in_memory = true});
  });
}

// --- Pipelines and models that do not fit ---------------------------------

PipelineLayers layers() {
  PipelineLayers made;
  made.add("a", torch::nn::Linear(2, 2)).add("b", torch::nn::Linear(2, 2));
  return made;
}

TEST_F(Life, Pipelines) {
  try_life(add_calls_of_PipelineLayers, [] { return PipelineLayers(); });
  try_life(add_calls_of_PipelineLayers, layers);
  try_handle(add_calls_of_Pipeline, [](auto& it) {
    return Pipeline(it.accelerator, layers());
  });
  try_handle(add_calls_of_PippyModel, [](auto& it) {
    return prepare_pippy(it.accelerator.world(), layers());
  });
  PipelineLayers failing = layers();
  failing.add("c", [](const at::Tensor& x) {
    if (x.size(0) == 2) throw DataError("no layer");
    return x;
  });
  Pipeline pipeline(stand().accelerator, failing);
  EXPECT_ANY_THROW(static_cast<void>(pipeline.forward(torch::ones({2, 2}))));
  try_calls<Pipeline>(
      add_calls_of_Pipeline, pipeline, "after a forward that failed");
}

TEST_F(Life, DispatchedModels) {
  std::list<torch::nn::Linear> nets;
  const auto dispatch = [&] {
    return dispatch_module(
        *nets.emplace_back(2, 1), {.device_map = DeviceMap{{"", "cpu"}}});
  };
  const auto offload = [&] {
    return cpu_offload_module(*nets.emplace_back(2, 1), {});
  };
  try_life(add_calls_of_Dispatch, [] { return Dispatch(); });
  try_life(add_calls_of_Dispatch, dispatch);
  try_life(add_calls_of_Dispatch, offload);
  Dispatch released = offload();
  released.release();
  try_calls<Dispatch>(add_calls_of_Dispatch, released, "after release()");
  Dispatch alone = offload();
  nets.clear();
  try_calls<Dispatch>(add_calls_of_Dispatch, alone, "of a model that is gone");

  try_life(add_calls_of_DispatchedModel, [] { return cpu_offload(net()); });
  auto undone = cpu_offload(net());
  undone.dispatch().release();
  try_calls<DispatchedModel<torch::nn::Linear>>(
      add_calls_of_DispatchedModel, undone, "after release()");

  try_life(
      add_calls_of_UserCpuOffloadHook, [] { return UserCpuOffloadHook(); });
  auto pair = cpu_offload_with_hook(net());
  try_life(add_calls_of_UserCpuOffloadHook, [&] { return pair.second; });
  UserCpuOffloadHook left = cpu_offload_with_hook(net()).second;
  try_calls<UserCpuOffloadHook>(
      add_calls_of_UserCpuOffloadHook, left, "of a model that is gone");
}

TEST_F(Life, QuantizedModels) {
  try_life(add_calls_of_QuantizedWeight, [] {
    return QuantizedWeight(torch::ones({2, 2}));
  });
  std::list<torch::nn::Sequential> nets;
  const auto quantize = [&] {
    auto& made =
        nets.emplace_back(torch::nn::Linear(64, 64), torch::nn::Linear(64, 2));
    return load_and_quantize_model(*made, {.load_in_8bit = true});
  };
  try_life(add_calls_of_QuantizedModel, quantize);
  QuantizedModel released = quantize();
  released.dispatch().release();
  try_calls<QuantizedModel>(
      add_calls_of_QuantizedModel, released, "after release()");
}

TEST_F(Life, OffloadedWeights) {
  const auto load = [] {
    return OffloadedWeightsLoader({.state_dict = {{"x", ones()}}});
  };
  try_life(add_calls_of_OffloadedWeightsLoader, load);
  const OffloadedWeightsLoader weights = load();
  try_life(add_calls_of_PrefixedDataset, [&] {
    return PrefixedDataset(weights, "x");
  });
  const auto hook = std::make_shared<ModelHook>();
  try_life(add_calls_of_SequentialHook, [&] { return SequentialHook({hook}); });
  try_life(add_calls_of_SequentialHook, [] { return SequentialHook({}); });
}

// --- Data -----------------------------------------------------------------

// Fails at its third sample.
struct FailingDataset {
  [[nodiscard]] std::int64_t size() const { return 4; }
  [[nodiscard]] at::Tensor get(std::int64_t index) const {
    if (index == 2) throw DataError("no sample");
    return ones();
  }
};

TEST_F(Life, DataLoader) {
  using Failing = DataLoader<FailingDataset>;
  for (const int num_workers : {0, 1}) {
    const DataLoaderOptions options = {
        .batch_size = 1, .num_workers = num_workers};
    const auto make = [&] {
      return DataLoader(TensorDataset(torch::ones({3, 2})), options);
    };
    using Plain = decltype(make());
    try_life(add_calls_of_DataLoader, make);
    try_life(add_calls_of_DataLoader, [&] {
      return stand().accelerator.prepare(make());
    });
    Failing failing(FailingDataset{}, options);
    EXPECT_THROW(
        for (auto& batch
             : failing) static_cast<void>(batch),
        DataError);
    try_calls<Failing>(add_calls_of_DataLoader, failing, "after a failed pass");

    Plain loader = make();
    auto iterator = loader.begin();
    try_calls<Plain>(add_calls_of_DataLoader, loader, "inside a pass");
    try_calls<typename Plain::Iterator>(
        add_calls_of_BatchIterator, iterator, "at the end");
    Plain left = make();
    {
      auto at = left.begin();
      Plain other = std::move(left);
      try_calls<Plain>(add_calls_of_DataLoader, left, "moved from in a pass");
      try_calls<Plain>(add_calls_of_DataLoader, other, "moved in a pass");
      try_calls<typename Plain::Iterator>(
          add_calls_of_BatchIterator, at, "of a loader that was moved");
    }
    auto outlived = [&] {
      Plain gone = make();
      return gone.begin();
    }();
    try_calls<typename Plain::Iterator>(
        add_calls_of_BatchIterator, outlived, "of a loader that is gone");
    std::optional<Plain> owner(make());
    auto skipped = skip_first_batches(*owner, 1);
    try_life(add_calls_of_SkippedBatches, [&] {
      return skip_first_batches(*owner);
    });
    Plain elsewhere = *std::move(owner);
    try_calls<SkippedBatches<Plain>>(
        add_calls_of_SkippedBatches, skipped, "of a loader that was moved");
    owner.reset();
    try_calls<SkippedBatches<Plain>>(
        add_calls_of_SkippedBatches, skipped, "of a loader that is gone");
  }
}

TEST_F(Life, TorchLoader) {
  const auto make = [] {
    return stand().accelerator.prepare(torch::data::make_data_loader(
        torch::data::datasets::TensorDataset({ones(), ones()}),
        torch::data::DataLoaderOptions(1)));
  };
  using Plain = decltype(make());
  try_life(add_calls_of_TorchLoader, make);
  Plain loader = make();
  auto iterator = loader.begin();
  try_calls<Plain>(add_calls_of_TorchLoader, loader, "inside a pass");
  try_calls<typename Plain::Iterator>(
      add_calls_of_BatchIterator, iterator, "at the end");
  {
    Plain left = make();
    auto at = left.begin();
    Plain other = std::move(left);
    try_calls<Plain>(add_calls_of_TorchLoader, left, "moved from in a pass");
    try_calls<typename Plain::Iterator>(
        add_calls_of_BatchIterator, at, "of a loader that was moved");
  }
  auto outlived = [&] {
    Plain gone = make();
    return gone.begin();
  }();
  try_calls<typename Plain::Iterator>(
      add_calls_of_BatchIterator, outlived, "of a loader that is gone");
}

TEST_F(Life, Samplers) {
  try_life(add_calls_of_SequentialSampler, [] { return SequentialSampler(4); });
  try_life(add_calls_of_KeyedSampler, [] { return KeyedSampler(4); });
  try_life(add_calls_of_RandomSampler, [] { return RandomSampler(4); });
  try_life(add_calls_of_WeightedRandomSampler, [] {
    return WeightedRandomSampler({1, 2, 3}, 4);
  });
  try_life(add_calls_of_LengthBucketSampler, [] {
    return LengthBucketSampler({1, 2, 3}, {.batch_size = 1});
  });
  // Before the start of a pass.
  EXPECT_EQ(fault_of([] { static_cast<void>(KeyedSampler(4).at(1)); }), "");
  EXPECT_EQ(fault_of([] { static_cast<void>(RandomSampler(4).at(1)); }), "");
  EXPECT_EQ(
      fault_of(
          [] { static_cast<void>(WeightedRandomSampler({1, 2, 3}, 4).at(1)); }),
      "");
  EXPECT_EQ(
      fault_of([] {
        static_cast<void>(LengthBucketSampler({1, 2}, {.batch_size = 1}).at(1));
      }),
      "");
}

TEST_F(Life, Datasets) {
  const std::filesystem::path csv = folder() / "table.csv";
  std::ofstream(csv) << "x,y\n1,2\n";
  try_life(add_calls_of_CsvFile, [&] { return CsvFile(csv.string()); });
  try_life(add_calls_of_CsvDataset, [&] {
    return CsvDataset(csv.string(), {.inputs = {"x"}, .targets = {"y"}});
  });
  const std::filesystem::path json = folder() / "lines.json";
  std::ofstream(json) << "{\"x\": 1}\n{\"x\": 2}\n";
  const auto lines = [&] { return JsonLinesFile(json.string()); };
  try_life(add_calls_of_JsonLinesFile, lines);
  try_life(add_calls_of_JsonRecord, [&] { return lines().record(0); });
  try_life(add_calls_of_JsonLinesDataset, [&] {
    return JsonLinesDataset(json.string(), [](const JsonRecord& record) {
      return record.tensor("x");
    });
  });
  const std::filesystem::path text = folder() / "tokens";
  std::ofstream(text) << "12345678";
  try_life(add_calls_of_TokenDataset, [&] {
    return TokenDataset({text.string()}, {.block_size = 2});
  });
  const std::filesystem::path images = folder() / "images";
  std::filesystem::create_directories(images / "a");
  std::ofstream(images / "a" / "0.ppm") << "P3 1 1 255 1 2 3";
  std::ofstream(images / "a" / "1.ppm") << "P3 1 1 255 1 2 3";
  try_life(
      add_calls_of_ImageFolder, [&] { return ImageFolder(images.string()); });
  try_life(add_calls_of_TensorDataset, [] { return TensorDataset(ones()); });
  try_life(
      add_calls_of_PadCollate, [] { return PadCollate(PadCollateOptions()); });
  try_life(add_calls_of_PackCollate, [] {
    return PackCollate(PackCollateOptions());
  });
}

TEST_F(Life, SafetensorsFiles) {
  const std::filesystem::path file = folder() / "one.safetensors";
  const auto write = [&] {
    return safetensors::Writer(file, {{"x", safetensors::Dtype::F32, {1}}});
  };
  try_life(add_calls_of_Writer, write);
  {
    safetensors::Writer finished = write();
    finished.write(bytes());
    finished.finish();
    try_calls<safetensors::Writer>(
        add_calls_of_Writer, finished, "after finish()");
  }
  {
    safetensors::Writer failed = write();
    failed.write(bytes());
    EXPECT_EQ(fault_of([&] { failed.write(bytes()); }), "");
    try_calls<safetensors::Writer>(
        add_calls_of_Writer, failed, "after a write that failed");
  }
  safetensors::Writer again = write();
  again.write(bytes());
  again.finish();
  try_life(add_calls_of_Reader, [&] { return safetensors::Reader(file); });
}

// --- Metrics, schedules, optimizers, modules ------------------------------

TEST_F(Life, Metrics) {
  const auto with_ranks = [](const MetricRanks& ranks) {
    try_life(add_calls_of_Mean, [&] { return Mean(ranks); });
    try_life(add_calls_of_Sum, [&] { return Sum(ranks); });
    try_life(add_calls_of_Accuracy, [&] { return Accuracy(ranks); });
    try_life(add_calls_of_Perplexity, [&] { return Perplexity(ranks); });
    try_life(
        add_calls_of_ConfusionMatrix, [&] { return ConfusionMatrix(ranks); });
    try_life(add_calls_of_F1, [&] { return F1(ranks); });
    try_life(add_calls_of_AUROC, [&] { return AUROC(ranks); });
    try_life(add_calls_of_AUROC, [&] { return AUROC(ranks, {.num_bins = 4}); });
  };
  with_ranks({});
  with_ranks(Accelerator(on_cpu()));
}

TEST_F(Life, Schedules) {
  using namespace optim;
  const LRLambda half = [](std::int64_t) { return 0.5; };
  try_life(add_calls_of_LambdaLR, [&] { return LambdaLR(half); });
  try_life(
      add_calls_of_MultiplicativeLR, [&] { return MultiplicativeLR(half); });
  try_life(add_calls_of_StepLR, [] { return StepLR({.step_size = 1}); });
  try_life(add_calls_of_MultiStepLR, [] {
    return MultiStepLR({.milestones = {1}});
  });
  try_life(add_calls_of_ConstantLR, [] { return ConstantLR({}); });
  try_life(add_calls_of_LinearLR, [] { return LinearLR({}); });
  try_life(add_calls_of_ExponentialLR, [] { return ExponentialLR(0.5); });
  try_life(add_calls_of_PolynomialLR, [] { return PolynomialLR({}); });
  try_life(add_calls_of_CosineAnnealingLR, [] {
    return CosineAnnealingLR({.T_max = 2});
  });
  try_life(add_calls_of_CosineAnnealingWarmRestarts, [] {
    return CosineAnnealingWarmRestarts({.T_0 = 2});
  });
  try_life(add_calls_of_OneCycleLR, [] {
    return OneCycleLR({.max_lr = {0.2}, .total_steps = 4});
  });
  try_life(add_calls_of_CyclicLR, [] {
    return CyclicLR({.base_lr = {0.1}, .max_lr = {0.2}});
  });
  try_life(add_calls_of_ReduceLROnPlateau, [] { return ReduceLROnPlateau(); });
  try_life(add_calls_of_SequentialLR, [] {
    return SequentialLR({2}, StepLR({.step_size = 1}), ConstantLR({}));
  });
  try_life(add_calls_of_ChainedScheduler, [] {
    return ChainedScheduler(StepLR({.step_size = 1}), ConstantLR({}));
  });
}

TEST_F(Life, Optimizers) {
  const auto weights = [] {
    return std::vector<at::Tensor>{ones().requires_grad_()};
  };
  try_life(add_calls_of_AdamW, [&] { return optim::AdamW(weights()); });
  try_life(add_calls_of_Adam, [&] { return optim::Adam(weights()); });
  try_life(add_calls_of_SGD, [&] { return optim::SGD(weights(), 0.1); });
  try_life(add_calls_of_Adagrad, [&] { return optim::Adagrad(weights()); });
  try_life(add_calls_of_Lomo, [&] { return optim::Lomo(weights()); });
  try_life(add_calls_of_AdaLomo, [&] { return optim::AdaLomo(weights()); });
}

// Modules are neither moved nor ended: before prepare().
TEST_F(Life, Modules) {
  const auto unprepared = []<class T>(Add<T> add, std::shared_ptr<T> module) {
    try_calls<T>(add, *module, "before prepare()");
  };
  unprepared(add_calls_of_RouterImpl, std::make_shared<RouterImpl>(2, 4));
  unprepared(
      add_calls_of_ExpertMlpImpl,
      std::make_shared<ExpertMlpImpl>(
          1, 2, ExpertMlpOptions{.intermediate_size = 4}));
  unprepared(
      add_calls_of_ExpertLayerImpl,
      std::make_shared<ExpertLayerImpl>(ExpertLayerOptions{
          .hidden_size = 2,
          .num_experts = 2,
          .mlp = ExpertMlpOptions{.intermediate_size = 4}}));
  unprepared(
      add_calls_of_ColumnParallelLinearImpl,
      std::make_shared<ColumnParallelLinearImpl>(2, 2));
  unprepared(
      add_calls_of_RowParallelLinearImpl,
      std::make_shared<RowParallelLinearImpl>(2, 2));
  unprepared(
      add_calls_of_VocabParallelEmbeddingImpl,
      std::make_shared<VocabParallelEmbeddingImpl>(2, 2));
  unprepared(
      add_calls_of_ExportedModuleImpl,
      std::make_shared<ExportedModuleImpl>("Block"));
  unprepared(
      add_calls_of_ExportedModelImpl,
      load_exported(ACCELERATE_LIFE_PROGRAM).ptr());
}

TEST_F(Life, ExportedOutputs) {
  ExportedModel program = load_exported(ACCELERATE_LIFE_PROGRAM);
  try_life(add_calls_of_ExportedOutputs, [] { return ExportedOutputs(); });
  try_life(add_calls_of_ExportedOutputs, [&] {
    return program->forward(torch::ones({2, 8}));
  });
}

}  // namespace life_test
}  // namespace accelerate
