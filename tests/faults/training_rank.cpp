// Trains and records after each step which samples it saw and its loader's
// position, so that it can be killed at any moment and started again.
// usage: training_rank DIRECTORY KIND NUM_RANKS SEED
//   KIND: samples, stream or restorable_stream
// Reads NUM_RANKS loaders in turn, as NUM_RANKS ranks would.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include <accelerate/accelerate.h>

namespace {

using accelerate::DataLoader;
using accelerate::DataLoaderOptions;
using accelerate::StateDict;

constexpr std::int64_t kSamples = 1000;
constexpr std::uint64_t kEpochs = 3;

using Sample = std::tuple<torch::Tensor, torch::Tensor>;
Sample sample(std::int64_t i) {
  return {
      torch::full({4}, static_cast<double>(i) / kSamples), torch::tensor(i)};
}

struct Samples {
  [[nodiscard]] std::int64_t size() const { return kSamples; }
  [[nodiscard]] Sample get(std::int64_t i) const { return sample(i); }
};

class Stream {
 public:
  std::optional<Sample> next() {
    return next_ < kSamples ? std::optional(sample(next_++)) : std::nullopt;
  }
  void reset() { next_ = 0; }

 protected:
  std::int64_t next_ = 0;
};

class RestorableStream : public Stream {
 public:
  [[nodiscard]] StateDict state_dict() const { return {{"next", next_}}; }
  void load_state_dict(const StateDict& state) {
    next_ = state.get<std::int64_t>("next");
  }
};

// An append-only file lists the samples seen; another file, replaced
// atomically, has its valid length and the loader's position.
class Journal {
 public:
  explicit Journal(const std::filesystem::path& directory)
      : seen_path_(directory / "seen"), state_path_(directory / "state") {
    std::ifstream file(state_path_);
    std::int64_t epoch = 0, position = 0, seed = 0, next = 0;
    has_state_ = static_cast<bool>(
        file >> num_seen_ >> epoch >> position >> seed >> next);
    if (has_state_) {
      state_ = {{"epoch", epoch}, {"position", position}, {"seed", seed}};
      if (next >= 0) state_.set("stream", StateDict{{"next", next}});
    }
    std::ofstream(seen_path_, std::ios::app).close();
    std::filesystem::resize_file(
        seen_path_,
        static_cast<std::uintmax_t>(num_seen_) * sizeof(std::int64_t));
    seen_.open(seen_path_, std::ios::binary | std::ios::app);
  }
  [[nodiscard]] const StateDict* state() const {
    return has_state_ ? &state_ : nullptr;
  }

  void commit(
      const std::vector<std::int64_t>& samples,
      const StateDict& state) {
    seen_.write(
        reinterpret_cast<const char*>(samples.data()),
        static_cast<std::streamsize>(samples.size() * sizeof(std::int64_t)));
    seen_.flush();
    num_seen_ += static_cast<std::int64_t>(samples.size());
    const std::string part = state_path_.string() + ".part";
    std::ofstream(part)
        << num_seen_ << ' ' << state.get<std::int64_t>("epoch") << ' '
        << state.get<std::int64_t>("position") << ' '
        << state.get<std::int64_t>("seed") << ' '
        << (state.contains("stream")
                ? state.get<StateDict>("stream").get<std::int64_t>("next")
                : -1);
    std::filesystem::rename(part, state_path_);
  }

 private:
  std::filesystem::path seen_path_, state_path_;
  std::ofstream seen_;
  std::int64_t num_seen_ = 0;
  bool has_state_ = false;
  StateDict state_;
};

template <class Dataset>
void train(
    const Dataset& dataset,
    Journal& journal,
    int num_ranks,
    std::uint64_t seed) {
  constexpr bool is_stream = !requires { dataset.size(); };
  const DataLoaderOptions options{
      .batch_size = 4,
      .shuffle = !is_stream,
      .even_batches = false,
      .data_seed = seed,
      .num_workers = 2};
  using Loader = DataLoader<Dataset>;
  std::vector<std::unique_ptr<Loader>> loaders;
  for (int rank = 0; rank < num_ranks; ++rank) {
    loaders.push_back(std::make_unique<Loader>(dataset, options));
    accelerate::detail::LoaderContext context;
    context.batch_rank = rank;
    context.batch_count = num_ranks;
    loaders.back()->attach(std::move(context));
    if (journal.state() != nullptr)
      loaders.back()->load_state_dict(*journal.state());
  }
  torch::nn::Linear net(4, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  bool is_first_step = true;
  while (loaders.front()->epoch() < kEpochs) {
    std::vector<typename Loader::Iterator> passes;
    for (auto& loader : loaders) passes.push_back(loader->begin());
    while (passes.front() != accelerate::detail::EndOfPass()) {
      std::vector<std::int64_t> seen;
      sgd.zero_grad();
      for (auto& pass : passes) {
        if (pass == accelerate::detail::EndOfPass()) continue;
        auto& [inputs, numbers] = *pass;
        for (const std::int64_t i : accelerate::listify(numbers))
          seen.push_back(i);
        net->forward(inputs).square().mean().backward();
      }
      sgd.step();
      journal.commit(seen, loaders.front()->state_dict());
      if (std::exchange(is_first_step, false))
        std::cout << "training" << std::endl;
      for (auto& pass : passes) {
        if (pass != accelerate::detail::EndOfPass()) ++pass;
      }
    }
  }
}

}  // namespace

int main(int, char** argv) {
  const std::string kind = argv[2];
  const int num_ranks = std::atoi(argv[3]);
  const auto seed = static_cast<std::uint64_t>(std::atoi(argv[4]));
  torch::set_num_threads(1);
  Journal journal(argv[1]);
  if (kind == "samples") {
    train(Samples(), journal, num_ranks, seed);
  } else if (kind == "stream") {
    train(Stream(), journal, num_ranks, seed);
  } else {
    train(RestorableStream(), journal, num_ranks, seed);
  }
  return 0;
}
