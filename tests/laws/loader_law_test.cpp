// Whatever the options, the samples of all ranks are the dataset, and a pass
// that is stopped anywhere resumes exactly there, on any number of ranks.
#include "laws/check.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include <accelerate/data_loader.h>

namespace accelerate {
namespace loader_law_test {

using testing::expect_law;
using Samples = std::vector<std::int64_t>;

struct Identity {
  std::int64_t count;
  [[nodiscard]] std::int64_t size() const { return count; }
  [[nodiscard]] std::int64_t get(std::int64_t i) const { return i; }
};

class Stream {
 public:
  explicit Stream(std::int64_t size) : size_(size) {}
  std::optional<std::int64_t> next() {
    return next_ < size_ ? std::optional(next_++) : std::nullopt;
  }
  void reset() { next_ = 0; }

 protected:
  std::int64_t size_;
  std::int64_t next_ = 0;
};

class RestorableStream : public Stream {
 public:
  using Stream::Stream;
  [[nodiscard]] StateDict state_dict() const { return {{"next", next_}}; }
  void load_state_dict(const StateDict& state) {
    next_ = state.get<std::int64_t>("next");
  }
};

struct AsList {
  Samples operator()(Samples samples) const { return samples; }
};

struct Case {
  std::int64_t size;
  DataLoaderOptions options;
  std::uint64_t epoch;
};

// The loaders of several ranks, read in turn.
template <class Dataset>
class Ranks {
 public:
  using Loader = DataLoader<Dataset, AsList>;

  Ranks(const Dataset& dataset, const DataLoaderOptions& options, int count)
      : heard_(static_cast<std::size_t>(count)) {
    for (int rank = 0; rank < count; ++rank) {
      loaders_.push_back(std::make_unique<Loader>(dataset, options));
      detail::LoaderContext context;
      context.batch_rank = rank;
      context.batch_count = count;
      context.seed = 11;
      Heard& heard = heard_[static_cast<std::size_t>(rank)];
      context.on_batch = [&heard](bool is_last, std::int64_t remainder) {
        heard = {is_last, remainder};
      };
      loaders_.back()->attach(std::move(context));
    }
  }
  void set_epoch(std::uint64_t epoch) {
    for (auto& loader : loaders_) loader->set_epoch(epoch);
  }
  void load(const StateDict& state) {
    for (auto& loader : loaders_) loader->load_state_dict(state);
  }

  struct Read {
    /// Each sample that the loaders do not count as repeated, in global order.
    Samples real;
    std::int64_t num_repeated = 0;
    std::int64_t num_rounds = 0;
    std::size_t shortest = 1'000'000, longest = 0;
    StateDict state;
  };
  Read read(std::int64_t most_rounds, bool is_even) {
    std::vector<typename Loader::Iterator> passes;
    for (auto& loader : loaders_) passes.push_back(loader->begin());
    std::vector<bool> was_last(passes.size(), false);
    Read all;
    for (; all.num_rounds < most_rounds; ++all.num_rounds) {
      Samples round;
      std::int64_t remainder = 0;
      bool is_any = false;
      for (std::size_t rank = 0; rank < passes.size(); ++rank) {
        if (passes[rank] == detail::EndOfPass()) {
          RC_ASSERT(!is_even || !is_any);
          continue;
        }
        RC_ASSERT(!was_last[rank]);
        is_any = true;
        const Samples& batch = *passes[rank];
        RC_ASSERT(!batch.empty());
        all.shortest = std::min(all.shortest, batch.size());
        all.longest = std::max(all.longest, batch.size());
        round.insert(round.end(), batch.begin(), batch.end());
        was_last[rank] = heard_[rank].is_last;
        remainder = heard_[rank].remainder;
      }
      if (!is_any) break;
      const auto num_real =
          remainder > 0 ? static_cast<std::size_t>(remainder) : round.size();
      RC_ASSERT(num_real <= round.size());
      all.num_repeated += static_cast<std::int64_t>(round.size() - num_real);
      round.resize(num_real);
      all.real.insert(all.real.end(), round.begin(), round.end());
      all.state = loaders_.front()->state_dict();
      for (auto& pass : passes) {
        // Does not advance past the last round that is read.
        if (all.num_rounds + 1 < most_rounds && pass != detail::EndOfPass())
          ++pass;
      }
    }
    return all;
  }

 private:
  struct Heard {
    bool is_last = false;
    std::int64_t remainder = 0;
  };
  std::vector<Heard> heard_;
  std::vector<std::unique_ptr<Loader>> loaders_;
};

constexpr std::int64_t kAll = 1'000'000;

Case any_case(int split_over) {
  Case chosen;
  chosen.size = *rc::gen::inRange<std::int64_t>(0, 60);
  DataLoaderOptions& options = chosen.options;
  options.batch_size = *rc::gen::inRange<std::int64_t>(1, 6);
  options.shuffle = *rc::gen::arbitrary<bool>();
  options.use_seedable_sampler = options.shuffle && *rc::gen::arbitrary<bool>();
  options.split_batches = *rc::gen::arbitrary<bool>();
  if (*options.split_batches) options.batch_size *= split_over;
  options.drop_last = *rc::gen::arbitrary<bool>();
  options.even_batches = *rc::gen::arbitrary<bool>();
  options.num_workers = *rc::gen::inRange(0, 3);
  if (options.num_workers > 0)
    options.prefetch_factor = *rc::gen::inRange(1, 4);
  chosen.epoch = *rc::gen::inRange<std::uint64_t>(0, 4);
  return chosen;
}

template <class Dataset>
void check_union(const Dataset& dataset, const Case& setup, int count) {
  Ranks<Dataset> ranks(dataset, setup.options, count);
  ranks.set_epoch(setup.epoch);
  const bool is_even = *setup.options.even_batches || setup.options.drop_last;
  auto read = ranks.read(kAll, is_even);
  Samples expected(static_cast<std::size_t>(setup.size));
  std::iota(expected.begin(), expected.end(), 0);
  std::sort(read.real.begin(), read.real.end());
  const std::int64_t round =
      setup.options.batch_size * (*setup.options.split_batches ? 1 : count);
  if (setup.options.drop_last) {
    RC_ASSERT(
        static_cast<std::int64_t>(read.real.size()) ==
        setup.size / round * round);
    RC_ASSERT(read.num_repeated == 0);
    RC_ASSERT(std::includes(
        expected.begin(), expected.end(), read.real.begin(), read.real.end()));
    RC_ASSERT(
        std::adjacent_find(read.real.begin(), read.real.end()) ==
        read.real.end());
    return;
  }
  RC_ASSERT(read.real == expected);
  if (count > 1 && *setup.options.even_batches && setup.size > 0) {
    RC_ASSERT(read.shortest == read.longest);
    RC_ASSERT(read.num_repeated == (round - setup.size % round) % round);
  } else {
    RC_ASSERT(read.num_repeated == 0);
  }
}

template <class Dataset>
void check_resume(const Dataset& dataset, Case setup, int before, int after) {
  const bool is_even = *setup.options.even_batches || setup.options.drop_last;
  Ranks<Dataset> reference(dataset, setup.options, before);
  reference.set_epoch(setup.epoch);
  const auto uninterrupted = reference.read(kAll, is_even);
  const auto next_epoch = reference.read(kAll, is_even);
  if (uninterrupted.num_rounds == 0) return;

  Ranks<Dataset> first(dataset, setup.options, before);
  first.set_epoch(setup.epoch);
  const auto stop =
      *rc::gen::inRange<std::int64_t>(1, uninterrupted.num_rounds + 1);
  const auto head = first.read(stop, is_even);

  setup.options.num_workers = *rc::gen::inRange(0, 3);
  setup.options.prefetch_factor.reset();
  Ranks<Dataset> second(dataset, setup.options, after);
  second.load(head.state);
  Samples joined = head.real;
  if (stop < uninterrupted.num_rounds) {
    const auto tail = second.read(kAll, is_even);
    joined.insert(joined.end(), tail.real.begin(), tail.real.end());
  }
  RC_ASSERT(joined == uninterrupted.real);
  // The next epoch is complete.
  auto later = second.read(kAll, is_even).real;
  RC_ASSERT(later == next_epoch.real);
}

TEST(LoaderLaw, RanksTogetherReadTheDataset) {
  expect_law(2000, [] {
    const auto count = *rc::gen::inRange(1, 5);
    const Case setup = any_case(count);
    check_union(Identity{setup.size}, setup, count);
  });
}

TEST(LoaderLaw, RanksTogetherReadAStream) {
  expect_law(1000, [] {
    const auto count = *rc::gen::inRange(1, 5);
    Case setup = any_case(count);
    setup.options.shuffle = false;
    setup.options.use_seedable_sampler = false;
    check_union(Stream(setup.size), setup, count);
  });
}

TEST(LoaderLaw, AStoppedPassGoesOnWhereItWas) {
  expect_law(2000, [] {
    const auto before = *rc::gen::inRange(1, 5);
    const auto after = *rc::gen::inRange(1, 5);
    Case setup = any_case(before * after);
    // A different number of ranks would drop other samples.
    setup.options.drop_last = setup.options.drop_last && before == after;
    check_resume(Identity{setup.size}, setup, before, after);
  });
}

TEST(LoaderLaw, AStoppedStreamGoesOnWhereItWas) {
  expect_law(1000, [] {
    const auto before = *rc::gen::inRange(1, 5);
    const auto after = *rc::gen::inRange(1, 5);
    Case setup = any_case(before * after);
    setup.options.drop_last = setup.options.drop_last && before == after;
    setup.options.shuffle = false;
    setup.options.use_seedable_sampler = false;
    if (*rc::gen::arbitrary<bool>()) {
      check_resume(RestorableStream(setup.size), setup, before, after);
    } else {
      check_resume(Stream(setup.size), setup, before, after);
    }
  });
}

}  // namespace loader_law_test
}  // namespace accelerate
