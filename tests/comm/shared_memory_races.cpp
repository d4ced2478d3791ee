// Ranks are threads that share one mapping, with several threads per rank.
// Always built with ThreadSanitizer, whatever the other programs are built
// with: without LibTorch at run time, every report is about this code.
//   shared_memory_races [ROUNDS] [SEED]
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/transport/shared_memory/memory/shared_blocks.h"
#include "comm/transport/shared_memory/operations/collectives.h"
#include "comm/transport/shared_memory/operations/messages.h"
#include "comm/transport/shared_memory/progress/progress_engine.h"

namespace {

using namespace accelerate;
using namespace accelerate::detail;
using Values = std::vector<std::int32_t>;

std::atomic<int> num_wrong{0};

void expect(bool is_right, const char* what) {
  if (is_right) return;
  std::printf("wrong: %s\n", what);
  ++num_wrong;
}

struct Unmapping {
  std::size_t bytes;
  void operator()(std::byte* memory) const {
    ::operator delete[](memory, std::align_val_t(4096));
  }
};

// Zeroed memory that begins at a page boundary.
std::unique_ptr<std::byte[], Unmapping> pages(std::size_t bytes) {
  auto* const memory =
      static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(4096)));
  std::fill_n(memory, bytes, std::byte{0});
  return {memory, Unmapping{bytes}};
}

HostTensor tensor_of(Values& values) {
  const std::int64_t size = static_cast<std::int64_t>(values.size());
  const std::int64_t stride = 1;
  return {
      reinterpret_cast<std::byte*>(values.data()),
      at::kInt,
      {&size, 1},
      {&stride, 1}};
}

void run(ProgressEngine& engine, std::shared_ptr<Operation> operation) {
  engine.begin(operation);
  engine.wait(*operation);
}

std::int32_t value_of(int rank, std::size_t place, int salt) {
  return static_cast<std::int32_t>(
      static_cast<std::size_t>(rank * 31 + salt) + place);
}

Values values_of(int rank, std::size_t count, int salt) {
  Values values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value_of(rank, i, salt);
  return values;
}

Values sum_of(int num_ranks, std::size_t count, int salt) {
  Values sum(count);
  for (int rank = 0; rank < num_ranks; ++rank) {
    for (std::size_t i = 0; i < count; ++i) sum[i] += value_of(rank, i, salt);
  }
  return sum;
}

// One rank's part in a history of collectives; all ranks have the same history.
class Rank {
 public:
  Rank(ProgressEngine& engine, std::int32_t* reducible)
      : engine_(engine), reducible_(reducible) {}

  void run_history(unsigned seed, int length) {
    std::mt19937 random(seed);
    for (int i = 0; i < length; ++i) {
      const std::size_t count = std::size_t{1} << (random() % 17U);
      const auto kind = random() % 9U;
      const auto root =
          static_cast<int>(random() % static_cast<unsigned>(engine_.size()));
      call(kind, count, root, i);
    }
  }

  // Exchanges messages with every rank while collectives run.
  void exchange_messages(int length) {
    for (int i = 0; i < length; ++i) {
      const std::size_t count = (i * 7919U) % 90'000U + 1;
      std::vector<Values> kept;
      std::vector<std::shared_ptr<Operation>> operations;
      for (int peer = 0; peer < engine_.size(); ++peer) {
        if (peer == engine_.rank()) continue;
        kept.push_back(values_of(engine_.rank(), count, i));
        operations.push_back(
            message(Message::Direction::send, peer, i % 3, kept.back()));
        kept.emplace_back(count);
        operations.push_back(
            message(Message::Direction::receive, peer, i % 3, kept.back()));
      }
      for (const auto& operation : operations) engine_.begin(operation);
      if (i % 4 == 0) engine_.run_in_background();
      if (i % 3 == 0) test(operations);
      for (const auto& operation : operations) engine_.wait(*operation);
      std::size_t place = 1;
      for (int peer = 0; peer < engine_.size(); ++peer) {
        if (peer == engine_.rank()) continue;
        expect(kept[place] == values_of(peer, count, i), "message");
        place += 2;
      }
    }
  }

 private:
  void test(const std::vector<std::shared_ptr<Operation>>& operations) {
    for (const auto& operation : operations) {
      while (!engine_.test(*operation)) std::this_thread::yield();
    }
  }

  std::shared_ptr<Message> message(
      Message::Direction direction,
      int peer,
      std::int64_t tag,
      Values& values) {
    return std::make_shared<Message>(
        direction, peer, tag, tensor_of(values).memory);
  }

  void call(unsigned kind, std::size_t count, int root, int salt) {
    const int me = engine_.rank();
    const int size = engine_.size();
    const Combination sum = combination_of(at::kInt, ReduceOp::sum);
    Values own = values_of(me, count, salt);
    Values many(count * static_cast<std::size_t>(size));
    const auto each = [&](int rank) {
      return HostMemory(
          reinterpret_cast<std::byte*>(
              many.data() + count * static_cast<std::size_t>(rank)),
          count * sizeof(std::int32_t));
    };
    const auto part = [&](int rank) {
      const auto begin = many.begin() +
          static_cast<std::ptrdiff_t>(count * static_cast<std::size_t>(rank));
      return Values(begin, begin + static_cast<std::ptrdiff_t>(count));
    };
    std::vector<HostMemory> parts;
    for (int rank = 0; rank < size; ++rank) parts.push_back(each(rank));
    switch (kind) {
      case 0:
        finish_later(make_all_reduce(tensor_of(own), sum, size));
        return expect(own == sum_of(size, count, salt), "all_reduce");
      case 1: {
        // Into the memory where the other ranks reduce it.
        std::copy(own.begin(), own.end(), reducible_);
        const auto length = static_cast<std::int64_t>(count);
        const std::int64_t stride = 1;
        run(engine_,
            make_all_reduce(
                {reinterpret_cast<std::byte*>(reducible_),
                 at::kInt,
                 {&length, 1},
                 {&stride, 1}},
                sum,
                size));
        return expect(
            Values(reducible_, reducible_ + count) == sum_of(size, count, salt),
            "reducible memory");
      }
      case 2:
        run(engine_, make_broadcast(tensor_of(own), root));
        return expect(own == values_of(root, count, salt), "broadcast");
      case 3:
        run(engine_, make_all_gather(tensor_of(many).memory, tensor_of(own)));
        for (int rank = 0; rank < size; ++rank)
          expect(part(rank) == values_of(rank, count, salt), "all_gather");
        return;
      case 4:
        run(engine_,
            make_gather(
                me == root ? parts : std::vector<HostMemory>{},
                tensor_of(own),
                root));
        for (int rank = 0; me == root && rank < size; ++rank)
          expect(part(rank) == values_of(rank, count, salt), "gather");
        return;
      case 5:
        for (int rank = 0; rank < size; ++rank) {
          const Values values = values_of(rank, count, salt);
          each(rank).copy_in(
              0,
              reinterpret_cast<const std::byte*>(values.data()),
              count * sizeof(std::int32_t));
        }
        run(engine_,
            make_scatter(
                tensor_of(own),
                me == root ? parts : std::vector<HostMemory>{},
                root));
        return expect(own == values_of(me, count, salt), "scatter");
      case 6: {
        Values input;
        for (int rank = 0; rank < size; ++rank)
          input.insert(input.end(), own.begin(), own.end());
        const std::vector<std::size_t> bytes(
            static_cast<std::size_t>(size), count * sizeof(std::int32_t));
        run(engine_,
            make_all_to_all(tensor_of(many), tensor_of(input), bytes, bytes));
        for (int rank = 0; rank < size; ++rank)
          expect(part(rank) == values_of(rank, count, salt), "all_to_all");
        return;
      }
      case 7: {
        Values input;
        for (int rank = 0; rank < size; ++rank)
          input.insert(input.end(), own.begin(), own.end());
        Values output(count);
        run(engine_,
            make_reduce_scatter(
                tensor_of(output).memory, tensor_of(input), sum));
        return expect(output == sum_of(size, count, salt), "reduce_scatter");
      }
      default:
        return run(engine_, make_barrier());
    }
  }

  // Waits until a listener, on any thread, reports that the operation is
  // finished.
  void finish_later(std::shared_ptr<Operation> operation) {
    std::atomic<bool> is_finished{false};
    engine_.begin(operation);
    engine_.on_finish(*operation, [&] { is_finished.store(true); });
    engine_.run_in_background();
    while (!is_finished.load()) std::this_thread::yield();
  }

  ProgressEngine& engine_;
  std::int32_t* reducible_;
};

void play(unsigned seed) {
  std::mt19937 random(seed);
  const int num_ranks = 2 + static_cast<int>(random() % 3U);
  constexpr std::size_t kMost = std::size_t{1} << 16U;
  const auto bytes = SegmentLayout(num_ranks).total_bytes();
  const auto memory = pages(bytes);
  const std::size_t block_bytes =
      SharedBlock::segment_bytes(kMost * sizeof(std::int32_t), num_ranks);
  const auto block_memory = pages(block_bytes);
  const bool may_spin = random() % 2U == 0;
  std::vector<std::unique_ptr<ProgressEngine>> engines;
  std::vector<int> world_ranks;
  for (int rank = 0; rank < num_ranks; ++rank) world_ranks.push_back(rank);
  for (int rank = 0; rank < num_ranks; ++rank) {
    engines.push_back(std::make_unique<ProgressEngine>(
        SharedSegment::borrow(memory.get(), bytes),
        rank,
        num_ranks,
        ProgressEngineOptions{
            .timeout = std::chrono::seconds(120),
            .world_ranks = world_ranks,
            .may_spin = may_spin}));
    engines.back()->announce();
  }
  const unsigned history = random();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ProgressEngine& engine = *engines[static_cast<std::size_t>(rank)];
      engine.watch_peers();
      const auto block = std::make_shared<SharedBlock>(
          SharedSegment::borrow(block_memory.get(), block_bytes),
          kMost * sizeof(std::int32_t));
      engine.blocks().add(block, num_ranks);
      Rank self(engine, reinterpret_cast<std::int32_t*>(block->part(rank)));
      std::thread messenger([&] { self.exchange_messages(8); });
      self.run_history(history, 25);
      messenger.join();
      block->release();
      run(engine, make_barrier());
      // One rank leaves, and the ranks that wait for it are told.
      if (rank == 0) return engine.end("[shared memory] rank 0 has had enough");
      try {
        run(engine, make_barrier());
        expect(false, "a barrier without rank 0");
      } catch (const std::runtime_error& error) {
        expect(
            std::string(error.what()) ==
                "[shared memory] rank 0 has had enough",
            error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main(int argc, char** argv) {
  const int num_rounds = argc > 1 ? std::atoi(argv[1]) : 10;
  const auto seed = static_cast<unsigned>(argc > 2 ? std::atoi(argv[2]) : 1);
  try {
    for (int round = 0; round < num_rounds && num_wrong.load() == 0; ++round)
      play(seed * 1'000'003U + static_cast<unsigned>(round));
  } catch (const std::exception& error) {
    expect(false, error.what());
  }
  if (num_wrong.load() > 0) return 1;
  std::printf("%d rounds, all as expected\n", num_rounds);
}
