#include "format/tensors/box_cover.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace accelerate::detail {
namespace box_cover_test {

using safetensors::Box;
using safetensors::Shape;

std::string complaint(
    const Shape& shape,
    const std::vector<Box>& boxes,
    bool must_cover = true) {
  std::vector<const Box*> all;
  for (const Box& box : boxes) all.push_back(&box);
  return complaint_of_boxes(shape, all, must_cover).value_or("");
}

TEST(BoxCover, NeedsEveryElementOnce) {
  EXPECT_EQ(complaint({4, 2}, {{{0, 0}, {3, 2}}, {{3, 0}, {1, 2}}}), "");
  EXPECT_EQ(complaint({}, {{{}, {}}}), "");
  EXPECT_EQ(complaint({0, 5}, {}), "");
  EXPECT_EQ(complaint({2}, {{{0}, {0}}, {{0}, {2}}, {{2}, {0}}}), "");
  EXPECT_EQ(complaint({}, {}), "the boxes of a tensor do not cover it");
  EXPECT_EQ(complaint({}, {{{}, {}}, {{}, {}}}), "boxes of a tensor overlap");
  EXPECT_EQ(complaint({4}, {{{1}, {3}}}, /*must_cover=*/false), "");
  EXPECT_EQ(
      complaint({4}, {{{1}, {3}}}), "the boxes of a tensor do not cover it");
  EXPECT_EQ(
      complaint({4}, {{{0}, {2}}, {{1}, {2}}}), "boxes of a tensor overlap");
  EXPECT_EQ(complaint({4}, {{{2}, {3}}}), "a box is not inside its tensor");
  EXPECT_EQ(complaint({4}, {{{5}, {0}}}), "a box is not inside its tensor");
  EXPECT_EQ(
      complaint({4}, {{{~std::uint64_t{0}}, {2}}}),
      "a box is not inside its tensor");
  EXPECT_EQ(
      complaint({4}, {{{0, 0}, {4, 1}}}),
      "a box and its tensor have different numbers of dimensions");
}

// Boxes that cover `shape`, made by repeatedly cutting a box in two anywhere.
std::vector<Box> random_partition(const Shape& shape, std::size_t num_boxes) {
  std::vector<Box> boxes{{Shape(shape.size(), 0), shape}};
  while (boxes.size() < num_boxes) {
    const auto which = *rc::gen::inRange<std::size_t>(0, boxes.size());
    const auto dim = *rc::gen::inRange<std::size_t>(0, shape.size());
    Box after = boxes[which];
    const auto at = *rc::gen::inRange<std::uint64_t>(0, after.size[dim] + 1);
    boxes[which].size[dim] = at;
    after.begin[dim] += at;
    after.size[dim] -= at;
    boxes.push_back(after);
  }
  return boxes;
}

// Returns what counting every element finds.
std::string counted(const Shape& shape, const std::vector<Box>& boxes) {
  std::uint64_t volume = 1;
  for (const std::uint64_t size : shape) volume *= size;
  std::vector<int> counts(volume, 0);
  for (std::uint64_t i = 0; i < volume; ++i) {
    for (const Box& box : boxes) {
      std::uint64_t rest = i;
      bool is_inside = true;
      for (std::size_t d = shape.size(); d-- > 0; rest /= shape[d]) {
        const std::uint64_t at = rest % shape[d];
        is_inside =
            is_inside && at >= box.begin[d] && at < box.begin[d] + box.size[d];
      }
      counts[i] += is_inside ? 1 : 0;
    }
  }
  if (std::any_of(counts.begin(), counts.end(), [](int n) { return n > 1; })) {
    return "boxes of a tensor overlap";
  }
  return "";
}

TEST(BoxCover, AgreesWithCounting) {
  EXPECT_TRUE(rc::check([] {
    const auto num_dims = *rc::gen::inRange<std::size_t>(1, 5);
    const auto side = std::uint64_t{num_dims < 3 ? 24U : 5U};
    const Shape shape(num_dims, side);
    auto boxes =
        random_partition(shape, *rc::gen::inRange<std::size_t>(1, 120));
    RC_ASSERT(complaint(shape, boxes) == "");
    RC_ASSERT(counted(shape, boxes) == "");
    // Moves some boxes without changing their volume.
    for (int i = *rc::gen::inRange(0, 4); i > 0; --i) {
      Box& box = boxes[*rc::gen::inRange<std::size_t>(0, boxes.size())];
      const auto dim = *rc::gen::inRange<std::size_t>(0, num_dims);
      box.begin[dim] =
          *rc::gen::inRange<std::uint64_t>(0, side - box.size[dim] + 1);
    }
    RC_ASSERT(complaint(shape, boxes) == counted(shape, boxes));
  }));
}

constexpr std::uint64_t kMany = 60'000;

TEST(BoxCover, TakesManyBoxesOfAnyLayout) {
  std::vector<Box> rows, columns, grid, corners;
  for (std::uint64_t i = 0; i < kMany; ++i) {
    rows.push_back({{i, 0}, {1, kMany}});
    // All columns start at 0 in the first dimension.
    columns.push_back({{0, i}, {kMany, 1}});
    grid.push_back({{i / 250, i % 250}, {1, 1}});
    // The left column of the remaining rectangle, then its top row, and so on.
    const std::uint64_t at = i / 2;
    corners.push_back(
        i % 2 == 0 ? Box{{at, at}, {kMany - at, 1}}
                   : Box{{at, at + 1}, {1, kMany - at - 1}});
  }
  EXPECT_EQ(complaint({kMany, kMany}, rows), "");
  EXPECT_EQ(complaint({kMany, kMany}, columns), "");
  EXPECT_EQ(complaint({kMany / 250, 250}, grid), "");
  EXPECT_EQ(complaint({kMany, kMany}, corners, /*must_cover=*/false), "");
  // One element of 3.6e9 is covered twice, another not at all.
  columns.front() = {{0, 0}, {kMany - 1, 1}};
  columns.push_back({{kMany - 1, 1}, {1, 1}});
  EXPECT_EQ(complaint({kMany, kMany}, columns), "boxes of a tensor overlap");
  grid.back() = grid.front();
  EXPECT_EQ(complaint({kMany / 250, 250}, grid), "boxes of a tensor overlap");
}

TEST(BoxCover, RefusesBoxesThatInterlockTooMuch) {
  // Sticks along each axis of a cube that do not touch: each cut across one
  // axis cuts all sticks along that axis.
  constexpr std::uint64_t kSide = 200;
  std::vector<Box> sticks;
  for (std::uint64_t i = 0; i < kSide; i += 2) {
    for (std::uint64_t j = 0; j < kSide; j += 2) {
      sticks.push_back({{0, i, j + 1}, {kSide, 1, 1}});
      sticks.push_back({{j + 1, 0, i}, {1, kSide, 1}});
      sticks.push_back({{i, j + 1, 0}, {1, 1, kSide}});
    }
  }
  const std::string answer =
      complaint({kSide, kSide, kSide}, sticks, /*must_cover=*/false);
  // Either answer is fine, but never "overlap", and it must come soon.
  EXPECT_TRUE(answer.empty() || answer.find("interlock") != std::string::npos)
      << answer;
}

}  // namespace box_cover_test
}  // namespace accelerate::detail
