// Topics about the samples that each rank gets from a loader. Ranks are
// simulated one by one, each with its own context, or real if rank 0 reads for
// all.
#include <accelerate/accelerate.h>

#include <iomanip>
#include <sstream>

#include "oracle/oracle.h"
#include "oracle/streams.h"
#include "support/run_on_ranks.h"

namespace accelerate::oracle {

namespace topic_loaders {

using detail::LoaderContext;

std::vector<std::int64_t> whole_numbers(const at::Tensor& tensor) {
  std::vector<std::int64_t> numbers;
  for (const double number : listify(tensor))
    numbers.push_back(static_cast<std::int64_t>(number));
  return numbers;
}

LoaderContext context_of(int rank, int count) {
  LoaderContext context;
  context.batch_rank = rank;
  context.batch_count = count;
  context.batch_ranks.clear();
  for (int r = 0; r < count; ++r) context.batch_ranks.push_back(r);
  return context;
}

LoaderContext context_of(const World& world) {
  LoaderContext context = context_of(world.rank(), world.size());
  context.group = world.group();
  return context;
}

DataLoaderOptions options_of(const Json& input) {
  DataLoaderOptions options;
  options.batch_size = input.at("batch_size");
  options.drop_last = input.value("drop_last", false);
  options.split_batches = input.value("split_batches", false);
  options.even_batches = input.value("even_batches", true);
  options.dispatch_batches = input.value("dispatch_batches", false);
  if (input.contains("data_seed") && !input.at("data_seed").is_null()) {
    options.shuffle = true;
    options.use_seedable_sampler = true;
    options.data_seed = input.at("data_seed").get<std::uint64_t>();
  }
  return options;
}

// Calls function(loader) with a loader over the samples 0 .. n - 1.
template <class Function>
void with_loader(
    const Json& input,
    const DataLoaderOptions& options,
    Function&& function) {
  const std::int64_t n = input.at("n");
  if (input.value("kind", "map") == "iterable") {
    DataLoader loader(Stream(n), options);
    function(loader);
  } else {
    DataLoader loader(TensorDataset{torch::arange(n)}, options);
    function(loader);
  }
}

Json errors_as_json(const std::function<Json()>& body) {
  try {
    return body();
  } catch (const ConfigError& error) {
    return {{"error", error.what()}};
  }
}

struct Order {
  std::vector<std::int64_t> indices;

  [[nodiscard]] Json json() const {
    std::uint64_t hash = 0xcbf29ce484222325;
    for (const std::int64_t index : indices) {
      for (int byte = 0; byte < 8; ++byte) {
        hash =
            (hash ^ (static_cast<std::uint64_t>(index) >> (8 * byte) & 0xff)) *
            0x100000001b3;
      }
    }
    std::ostringstream digest;
    digest << std::hex << std::setw(16) << std::setfill('0') << hash;
    const std::size_t shown = std::min<std::size_t>(indices.size(), 64);
    return {
        {"count", indices.size()},
        {"first",
         std::vector<std::int64_t>(
             indices.begin(),
             indices.begin() + static_cast<std::ptrdiff_t>(shown))},
        {"fnv1a64", digest.str()}};
  }
};

Json prepared_orders(const Json& input) {
  Json ranks = Json::array();
  const int count = input.at("num_processes");
  for (int rank = 0; rank < count; ++rank) {
    DataLoader loader(
        TensorDataset{torch::arange(input.at("n").get<std::int64_t>())},
        options_of(input));
    loader.attach(context_of(rank, count));
    Json epochs = Json::array();
    for (int epoch = 0; epoch < input.at("epochs"); ++epoch) {
      Json batches = Json::array();
      for (auto& [x] : loader) batches.push_back(whole_numbers(x));
      epochs.push_back(std::move(batches));
    }
    ranks.push_back({{"epochs", std::move(epochs)}});
  }
  return {{"ranks", std::move(ranks)}};
}

Json seedable_orders(const Json& input) {
  RandomSampler sampler(input.at("n"));
  std::uint64_t epoch = 0;
  Json orders = Json::array();
  for (const Json& entry : input.at("set_epochs")) {
    if (!entry.is_null()) epoch = entry;
    sampler.begin_pass(input.at("data_seed"), epoch++);
    Order order;
    for (std::int64_t i = 0; i < sampler.size(); ++i)
      order.indices.push_back(sampler.at(i));
    orders.push_back(order.json());
  }
  return {{"orders", std::move(orders)}};
}

}  // namespace topic_loaders

Json run_seedable_sampler(const Json& input) {
  using namespace topic_loaders;
  const std::string kind = input.at("kind");
  if (kind == "prepared") return prepared_orders(input);
  if (kind == "seedable_sampler") return seedable_orders(input);
  RandomSamplerOptions options;
  int passes = 1;
  if (kind == "random_sampler") {
    passes = input.at("passes");
    options.replacement = input.at("replacement");
    if (!input.at("num_samples").is_null()) {
      options.num_samples = input.at("num_samples").get<std::int64_t>();
    }
  }
  at::Generator generator =
      at::detail::createCPUGenerator(input.at("seed").get<std::uint64_t>());
  Json orders = Json::array();
  for (int pass = 0; pass < passes; ++pass) {
    orders.push_back(
        Order{random_order(input.at("n"), options, generator)}.json());
  }
  return {{"orders", std::move(orders)}};
}

Json run_iterable_dataset_shard(const Json& input) {
  using namespace topic_loaders;
  return errors_as_json([&]() -> Json {
    const int count = input.at("num_processes");
    Json ranks = Json::array();
    for (int rank = 0; rank < count; ++rank) {
      DataLoader loader(SizedStream(input.at("n")), options_of(input));
      LoaderContext context = context_of(rank, count);
      context.fills_up_alone = true;
      loader.attach(std::move(context));
      std::vector<std::int64_t> elements;
      for (auto& [x] : loader) {
        for (const std::int64_t sample : whole_numbers(x))
          elements.push_back(sample);
      }
      ranks.push_back({{"elements", elements}, {"length", elements.size()}});
    }
    return {{"ranks", std::move(ranks)}};
  });
}

Json run_dispatcher(const Json& input) {
  using namespace topic_loaders;
  return errors_as_json([&]() -> Json {
    const int count = input.at("num_processes");
    std::vector<Json> ranks(static_cast<std::size_t>(count));
    testing::run_in_worlds(count, [&](const World& world) {
      DataLoaderOptions options = options_of(input);
      options.dispatch_batches = true;
      with_loader(input, options, [&](auto& loader) {
        std::optional<std::int64_t> remainder;
        LoaderContext context = context_of(world);
        context.on_batch = [&](bool is_last, std::int64_t real) {
          remainder = is_last ? std::optional(real) : std::nullopt;
        };
        loader.attach(std::move(context));
        Json batches = Json::array(), remainders = Json::array(),
             ends = Json::array();
        for (auto& [x] : loader) {
          batches.push_back(whole_numbers(x));
          ends.push_back(remainder.has_value());
          // Without padding, ours is 0 and Accelerate's is the full batch.
          remainders.push_back(
              !remainder           ? -1
                  : *remainder > 0 ? *remainder
                                   : x.size(0) * world.size());
        }
        Json length = nullptr;
        if constexpr (requires { loader.size(); }) length = loader.size();
        ranks[static_cast<std::size_t>(world.rank())] = {
            {"batches", std::move(batches)},
            {"remainder", std::move(remainders)},
            {"end_of_dataloader", std::move(ends)},
            {"length", std::move(length)}};
      });
    });
    return {{"ranks", ranks}};
  });
}

Json run_skip_first_batches(const Json& input) {
  using namespace topic_loaders;
  return errors_as_json([&]() -> Json {
    const int count = input.at("num_processes");
    std::vector<Json> ranks(static_cast<std::size_t>(count));
    const auto read = [&](LoaderContext context) {
      const auto rank = static_cast<std::size_t>(context.batch_rank);
      with_loader(input, options_of(input), [&](auto& loader) {
        loader.attach(std::move(context));
        for (int epoch = 0; epoch < input.at("epoch"); ++epoch) {
          for (auto& batch : loader) static_cast<void>(batch);
        }
        Json batches = Json::array();
        for (auto& [x] : skip_first_batches(loader, input.at("skip"))) {
          batches.push_back(whole_numbers(x));
        }
        ranks[rank] = {{"batches", std::move(batches)}};
      });
    };
    if (input.at("dispatch_batches")) {
      testing::run_in_worlds(
          count, [&](const World& world) { read(context_of(world)); });
    } else {
      for (int rank = 0; rank < count; ++rank) read(context_of(rank, count));
    }
    return {{"ranks", ranks}};
  });
}

}  // namespace accelerate::oracle
