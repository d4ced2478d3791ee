#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <accelerate/error.h>

#include "comm/group/group_impl.h"
#include "comm/transport/disagreement.h"
#include "support/memory_worlds.h"

namespace accelerate::detail {
namespace disagreement_test {

using testing::run_in_memory_worlds;

// A call, and how errors name it.
struct Call {
  std::string text;
  std::function<void(const Group&)> make;
};

const std::vector<Call>& calls() {
  static const std::vector<Call> all{
      {"barrier", [](const Group& group) { group.barrier(); }},
      {"all_reduce of 24 bytes (Float [2, 3], sum)",
       [](const Group& group) { group.all_reduce(torch::ones({2, 3})); }},
      {"all_reduce of 24 bytes (Float [3, 2], sum)",
       [](const Group& group) { group.all_reduce(torch::ones({3, 2})); }},
      {"all_reduce of 24 bytes (Float [2, 3], max)",
       [](const Group& group) {
         group.all_reduce(torch::ones({2, 3}), ReduceOp::max);
       }},
      {"all_reduce of 24 bytes (Int [2, 3], sum)",
       [](const Group& group) {
         group.all_reduce(torch::ones({2, 3}, at::kInt));
       }},
      {"reduce of 24 bytes (Float [2, 3], sum), root 0",
       [](const Group& group) { group.reduce(torch::ones({2, 3}), 0); }},
      {"reduce_scatter of 24 bytes (Float [2, 3], sum)",
       [](const Group& group) {
         (void)group.reduce_scatter(torch::ones({2, 3}));
       }},
      {"broadcast of 24 bytes (Float [2, 3]), root 0",
       [](const Group& group) { group.broadcast(torch::ones({2, 3}), 0); }},
      {"broadcast of 24 bytes (Int [2, 3]), root 0",
       [](const Group& group) {
         group.broadcast(torch::ones({2, 3}, at::kInt), 0);
       }},
      {"broadcast of 24 bytes (Float [2, 3]), root 1",
       [](const Group& group) { group.broadcast(torch::ones({2, 3}), 1); }},
      {"all_gather of 24 bytes (Float [2, 3])",
       [](const Group& group) { (void)group.all_gather(torch::ones({2, 3})); }},
      {"all_gather of 0 bytes (Float [0, 3])",
       [](const Group& group) { (void)group.all_gather(torch::ones({0, 3})); }},
      {"gather of 24 bytes (Float [2, 3]), root 0",
       [](const Group& group) { (void)group.gather(torch::ones({2, 3}), 0); }},
      {"gather of 24 bytes (Float [2, 3]), root 1",
       [](const Group& group) { (void)group.gather(torch::ones({2, 3}), 1); }},
      {"scatter of 24 bytes (Float [2, 3]), root 0",
       [](const Group& group) {
         const std::vector<at::Tensor> parts(
             static_cast<std::size_t>(group.size()), torch::ones({2, 3}));
         group.scatter(torch::ones({2, 3}), parts, 0);
       }},
      {"all_to_all (Long)", [](const Group& group) {
         const std::vector<at::Tensor> parts(
             static_cast<std::size_t>(group.size()), torch::ones({2, 3}));
         (void)group.all_to_all(parts);
       }}};
  return all;
}

// Whether a rank that makes this call waits for the other rank; if not, it may
// be done before the other arrives.
bool waits(const Call& call, int rank) {
  const bool is_root = call.text.ends_with(std::to_string(rank));
  if (call.text.starts_with("broadcast") || call.text.starts_with("scatter"))
    return !is_root;
  if (call.text.starts_with("gather") || call.text.starts_with("reduce of"))
    return is_root;
  return true;
}

// The call as lists of all ranks' calls show it, which replace the transport's
// words where the ranks share a board.
std::string listed(int rank, const Call& call) {
  const std::string operation = call.text.substr(0, call.text.find(' '));
  const std::size_t tensor = call.text.find('(');
  const std::size_t end = call.text.find(']');
  std::string text = "rank " + std::to_string(rank) + ": " + operation;
  if (end != std::string::npos)
    text += " " + call.text.substr(tensor, end + 1 - tensor) + ")";
  const std::size_t root = call.text.find("root ");
  if (root != std::string::npos) text += " with " + call.text.substr(root);
  return text + " number 1";
}

TEST(Disagreement, IsNamedAtOnceForAnyTwoCalls) {
  for (std::size_t i = 0; i < calls().size(); ++i) {
    for (std::size_t k = 0; k < calls().size(); ++k) {
      if (i == k) continue;
      const Call& first = calls()[i];
      const Call& second = calls()[k];
      // A rank that waits notices the disagreement; at least one must wait.
      if (!waits(first, 0) && !waits(second, 1)) continue;
      std::vector<std::string> texts(2);
      run_in_memory_worlds(2, [&](const World& world) {
        try {
          (world.rank() == 0 ? first : second).make(world.group());
          // Waits until the other rank has noticed.
          world.group().barrier();
        } catch (const DistributedError& error) {
          texts[static_cast<std::size_t>(world.rank())] = error.what();
        }
      });
      const std::string all = texts[0] + texts[1];
      const auto names = [](int rank, const Call& call) {
        return ::testing::AnyOf(
            ::testing::HasSubstr("called " + call.text),
            ::testing::HasSubstr(listed(rank, call)));
      };
      EXPECT_THAT(all, names(0, first)) << first.text << ", " << second.text;
      EXPECT_THAT(all, names(1, second)) << first.text << ", " << second.text;
      EXPECT_EQ(all.find("timed out"), std::string::npos);
    }
  }
}

TEST(Disagreement, IsKnownByItsText) {
  const std::string text =
      describe_disagreement({"0", "barrier"}, {"3", "all_reduce of 4 bytes"});
  EXPECT_EQ(
      text, "rank 0 called barrier, but rank 3 called all_reduce of 4 bytes");
  EXPECT_TRUE(is_disagreement(text));
  EXPECT_TRUE(is_disagreement("[shared memory] " + text));
  EXPECT_FALSE(is_disagreement("rank 0 called barrier"));
  EXPECT_FALSE(is_disagreement("barrier timed out waiting for rank 3"));
}

TEST(Disagreement, IsNamedForPartsOfOtherSizes) {
  std::vector<std::string> texts(2);
  run_in_memory_worlds(2, [&](const World& world) {
    Connection& connection = *world.group().impl()->connection;
    const at::Tensor output = torch::empty({6}, at::kByte);
    const at::Tensor input = torch::ones({6}, at::kByte);
    try {
      // Rank 1 sends one byte less than rank 0 expects.
      const std::vector<std::int64_t> sizes = world.rank() == 0
          ? std::vector<std::int64_t>{2, 4}
          : std::vector<std::int64_t>{3, 3};
      connection.all_to_all(output, input, sizes, sizes)->wait();
    } catch (const std::exception& error) {
      texts[static_cast<std::size_t>(world.rank())] = error.what();
    }
  });
  EXPECT_THAT(
      texts[0] + texts[1],
      ::testing::AnyOf(
          ::testing::HasSubstr("expecting 4 bytes of that rank, but rank 1 "
                               "called all_to_all sending it 3 bytes"),
          ::testing::HasSubstr("expecting 3 bytes of that rank, but rank 0 "
                               "called all_to_all sending it 4 bytes")));
}

}  // namespace disagreement_test
}  // namespace accelerate::detail
