// Verification finds a single flipped bit anywhere in a checkpoint.
#include <fstream>
#include <random>

#include <accelerate/accelerate.h>
#include <accelerate/optimizers.h>

#include "base/files/files.h"
#include "checkpoint/load/checkpoint_reader.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace bit_flip_test {

namespace fs = std::filesystem;

TEST(Verify, FindsOneFlippedBitWhereverItIs) {
  const testing::TemporaryDirectory directory;
  const fs::path saved = directory / "saved";
  {
    AcceleratorOptions options;
    options.world = {.rank = 0, .size = 1};
    const Accelerator accelerator(options);
    torch::nn::Linear net(16, 8);
    optim::Adam adam(net->parameters(), 1e-3);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    accelerator.backward(model(torch::ones({2, 16})).sum());
    optimizer.step();
    accelerator.save_state(saved);
  }
  detail::CheckpointReader(saved).verify();
  std::vector<std::pair<fs::path, std::string>> files;
  std::size_t total = 0;
  for (const auto& entry : fs::directory_iterator(saved)) {
    files.emplace_back(entry.path(), detail::read_file(entry.path()));
    total += files.back().second.size();
  }
  ASSERT_EQ(files.size(), 5u);
  const auto put = [](const fs::path& path, std::size_t place, char byte) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(place));
    file.put(byte);
  };
  std::mt19937 random(1);
  constexpr int kFlips = 10'000;
  int num_found = 0;
  for (int i = 0; i < kFlips; ++i) {
    std::size_t place =
        std::uniform_int_distribution<std::size_t>(0, total - 1)(random);
    std::size_t which = 0;
    while (place >= files[which].second.size()) {
      place -= files[which++].second.size();
    }
    const auto& [path, contents] = files[which];
    const char old = contents[place];
    put(path, place, static_cast<char>(old ^ (1 << (random() % 8))));
    try {
      detail::CheckpointReader(saved).verify();
      ADD_FAILURE() << path << " at " << place;
    } catch (const CheckpointError&) {
      ++num_found;
    }
    put(path, place, old);
  }
  EXPECT_EQ(num_found, kFlips);
  detail::CheckpointReader(saved).verify();
}

}  // namespace bit_flip_test
}  // namespace accelerate
