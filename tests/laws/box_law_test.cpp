// Boxes written by the ranks of one grid are read by the ranks of another.
#include "laws/check.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <accelerate/accelerate.h>

#include "checkpoint/load/destinations.h"
#include "format/checkpoint/manifest.h"
#include "format/tensors/stored_tensors.h"
#include "params/box_elements.h"
#include "params/layout.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace box_law_test {

using detail::Layout;
using testing::expect_law;

using Coordinates = std::array<int, kNumAxes>;

/// How one axis splits one dimension: in proportion to weights, some of which
/// are 0. Rows form `projections` ranges, each split separately.
struct Split {
  Axis axis;
  std::int64_t dim;
  std::vector<std::int64_t> weights;
  std::int64_t projections = 1;
};

/// A grid of ranks and its splits of one tensor, in order.
struct Grid {
  std::vector<Coordinates> ranks;
  std::vector<Split> splits;

  [[nodiscard]] Layout layout_of(
      std::size_t rank,
      const std::vector<std::int64_t>& shape) const {
    Layout layout = Layout::unsharded(shape);
    for (const Split& split : splits) {
      const std::int64_t held =
          layout.extent[static_cast<std::size_t>(split.dim)];
      const auto total = std::accumulate(
          split.weights.begin(), split.weights.end(), std::int64_t{0});
      const auto place =
          split.weights.begin() + ranks[rank][static_cast<int>(split.axis)];
      const auto before =
          std::accumulate(split.weights.begin(), place, std::int64_t{0});
      std::vector<detail::IndexRange> ranges;
      for (std::int64_t i = 0; i < split.projections; ++i) {
        const std::int64_t first = held * i / split.projections;
        const std::int64_t size = held * (i + 1) / split.projections - first;
        ranges.emplace_back(
            first + size * before / total,
            first + size * (before + *place) / total);
      }
      if (split.projections > 1) {
        layout.split_rows(split.axis, ranges);
      } else {
        const auto [begin, end] = ranges.front();
        layout.split(split.axis, split.dim, begin, end - begin);
      }
    }
    return layout;
  }
};

rc::Gen<std::vector<std::int64_t>> shapes() {
  return rc::gen::exec([] {
    return *rc::gen::container<std::vector<std::int64_t>>(
        *rc::gen::inRange<std::size_t>(1, 5),
        rc::gen::inRange<std::int64_t>(0, 8));
  });
}

rc::Gen<Grid> grids(std::int64_t num_dims) {
  return rc::gen::exec([num_dims] {
    // Excludes pipeline stages, which hold different tensors; at most 8 ranks.
    constexpr std::array<std::array<int, 4>, 10> kDegrees{
        {{1, 1, 1, 1},
         {2, 1, 1, 1},
         {1, 3, 1, 1},
         {1, 1, 1, 5},
         {2, 2, 1, 1},
         {1, 2, 1, 2},
         {1, 2, 1, 3},
         {1, 3, 2, 1},
         {2, 1, 1, 3},
         {2, 2, 1, 2}}};
    const auto degrees = *rc::gen::elementOf(kDegrees);
    Grid grid;
    int num_ranks = 1;
    for (const int degree : degrees) num_ranks *= degree;
    for (int rank = 0; rank < num_ranks; ++rank) {
      Coordinates place{};
      int rest = rank;
      for (std::size_t i = degrees.size(); i-- > 0;) {
        place[i + 1] = rest % degrees[i];
        rest /= degrees[i];
      }
      grid.ranks.push_back(place);
    }
    // Axes split in any order; axes that do not split hold replicas.
    std::array<int, 4> order{0, 1, 2, 3};
    std::mt19937 random(*rc::gen::arbitrary<std::uint32_t>());
    std::shuffle(order.begin(), order.end(), random);
    for (const int i : order) {
      if (*rc::gen::inRange(0, 4) == 0) continue;
      const auto degree =
          static_cast<std::size_t>(degrees[static_cast<std::size_t>(i)]);
      Split split{
          static_cast<Axis>(i + 1),
          *rc::gen::inRange<std::int64_t>(0, num_dims),
          *rc::gen::container<std::vector<std::int64_t>>(
              degree, rc::gen::inRange<std::int64_t>(0, 4))};
      if (split.dim == 0)
        split.projections = *rc::gen::element<std::int64_t>(1, 1, 2, 3);
      // At least one weight must be above 0.
      split.weights[static_cast<std::size_t>(
          *rc::gen::inRange<std::size_t>(0, degree))] += 1;
      grid.splits.push_back(std::move(split));
    }
    return grid;
  });
}

at::Tensor box_of(const at::Tensor& tensor, const Layout& layout) {
  std::vector<at::Tensor> boxes;
  for (const detail::LayoutPiece& piece : detail::pieces_of(layout)) {
    at::Tensor box = tensor;
    for (std::size_t dim = 0; dim < layout.extent.size(); ++dim) {
      box = box.narrow(
          static_cast<std::int64_t>(dim),
          piece.layout.offset[dim],
          piece.layout.extent[dim]);
    }
    boxes.push_back(box);
  }
  return at::cat(boxes);
}

safetensors::Shape unsigned_shape(const std::vector<std::int64_t>& sizes) {
  return {sizes.begin(), sizes.end()};
}

constexpr const char* kName = "tensor";

// The boxes of a layout, stored one after another in its rank's file.
std::vector<safetensors::Box> places_of(const Layout& layout) {
  std::vector<safetensors::Box> places;
  for (const detail::LayoutPiece& piece : detail::pieces_of(layout)) {
    places.push_back(
        {unsigned_shape(piece.layout.offset),
         unsigned_shape(piece.layout.extent)});
  }
  return places;
}

// Writes the boxes of all writing ranks to a single file.
detail::StoredTensors write_boxes(
    const Grid& grid,
    const at::Tensor& tensor,
    safetensors::Dtype dtype,
    const std::filesystem::path& path) {
  const std::vector<std::int64_t> shape = tensor.sizes().vec();
  detail::StoredTensor stored{dtype, unsigned_shape(shape), {}};
  std::string contents;
  for (std::size_t rank = 0; rank < grid.ranks.size(); ++rank) {
    const Layout layout = grid.layout_of(rank, shape);
    if (!detail::is_writer(layout, grid.ranks[rank])) continue;
    const at::Tensor box = box_of(tensor, layout);
    std::size_t begin = contents.size();
    for (const safetensors::Box& place : places_of(layout)) {
      std::size_t size = static_cast<std::size_t>(tensor.element_size());
      for (const std::uint64_t extent : place.size) size *= extent;
      stored.boxes.push_back({nullptr, begin, place});
      begin += size;
    }
    contents.append(
        static_cast<const char*>(box.const_data_ptr()), box.nbytes());
  }
  std::ofstream(path, std::ios::binary) << contents;
  const auto file = std::make_shared<detail::InputFile>(path);
  for (detail::StoredBox& box : stored.boxes) box.file = file;
  return {{kName, std::move(stored)}};
}

TEST(BoxLaw, WhatOneGridWritesAnotherReads) {
  constexpr std::pair<at::ScalarType, safetensors::Dtype> kDtypes[] = {
      {at::kByte, safetensors::Dtype::U8},
      {at::kShort, safetensors::Dtype::I16},
      {at::kFloat, safetensors::Dtype::F32},
      {at::kDouble, safetensors::Dtype::F64}};
  const testing::TemporaryDirectory directory(
      testing::TemporaryDirectory::memory());
  expect_law(10'000, [&] {
    const auto shape = *shapes();
    const auto num_dims = static_cast<std::int64_t>(shape.size());
    const Grid written = *grids(num_dims), read = *grids(num_dims);
    const auto [dtype, file_dtype] =
        kDtypes[*rc::gen::inRange<std::size_t>(0, std::size(kDtypes))];
    std::int64_t numel = 1;
    for (const std::int64_t size : shape) numel *= size;
    const at::Tensor tensor =
        torch::arange(numel).mul(7).remainder(251).to(dtype).view(shape);

    const auto saved =
        write_boxes(written, tensor, file_dtype, directory / "boxes");
    std::vector<detail::Destination> destinations;
    for (std::size_t rank = 0; rank < read.ranks.size(); ++rank) {
      const Layout layout = read.layout_of(rank, shape);
      destinations.push_back(
          {kName, torch::full(layout.extent, 99, dtype), layout});
    }
    detail::read_into(saved, destinations);
    for (const auto& [name, box, layout] : destinations)
      RC_ASSERT(torch::equal(box, box_of(tensor, layout)));
  });
}

// Manifests are refused unless the boxes of a tensor cover it exactly once.
TEST(BoxLaw, ManifestsTakeTheBoxesOfAnyGrid) {
  expect_law(500, [&] {
    const auto shape = *shapes();
    const Grid grid = *grids(static_cast<std::int64_t>(shape.size()));
    detail::Manifest manifest;
    std::vector<detail::SavedBox> written;
    for (std::size_t rank = 0; rank < grid.ranks.size(); ++rank) {
      const Layout layout = grid.layout_of(rank, shape);
      if (!detail::is_writer(layout, grid.ranks[rank])) continue;
      const std::string file = std::to_string(rank);
      detail::Manifest fragment;
      fragment.files.emplace(file, detail::FileRecord{});
      detail::SavedTensor& saved = fragment.sections["model"][kName];
      saved = {
          safetensors::Dtype::F32, unsigned_shape(layout.global_shape), {}};
      std::uint64_t row = 0;
      for (const safetensors::Box& place : places_of(layout)) {
        saved.boxes.push_back({file, place, row});
        written.push_back(saved.boxes.back());
        row += place.size[0];
      }
      merge_into(manifest, detail::parse_fragment(fragment_text(fragment)));
    }
    const detail::Manifest read =
        detail::parse_manifest(detail::manifest_text(manifest), "law");
    const auto& boxes = read.sections.at("model").at(kName).boxes;
    RC_ASSERT(boxes.size() == written.size());
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      RC_ASSERT(boxes[i].box.begin == written[i].box.begin);
      RC_ASSERT(boxes[i].box.size == written[i].box.size);
      RC_ASSERT(boxes[i].row == written[i].row);
    }
  });
}

// Reads a tensor in pieces, as a rank does that gathers it from its peers.
TEST(BoxLaw, PiecesOfAnySizeArePutTogetherFromBoxes) {
  expect_law(10'000, [&] {
    const auto shape = *shapes();
    const Grid grid = *grids(static_cast<std::int64_t>(shape.size()));
    const auto width = *rc::gen::element<std::int64_t>(1, 2, 4, 8);
    std::int64_t num_bytes = width;
    for (const std::int64_t size : shape) num_bytes *= size;
    const auto piece = *rc::gen::inRange<std::int64_t>(1, num_bytes + 2);
    std::vector<std::int64_t> sizes = shape;
    sizes.push_back(width);
    const at::Tensor tensor =
        torch::arange(num_bytes).mul(7).remainder(251).to(at::kByte).view(
            sizes);

    std::vector<std::uint8_t> found(static_cast<std::size_t>(num_bytes), 252);
    for (std::size_t rank = 0; rank < grid.ranks.size(); ++rank) {
      const Layout layout = grid.layout_of(rank, shape);
      if (!detail::is_writer(layout, grid.ranks[rank])) continue;
      const detail::BoxElements bytes(layout, width);
      const at::Tensor box = box_of(tensor, layout);
      RC_ASSERT(bytes.count() == box.numel());
      const auto* const data = box.const_data_ptr<std::uint8_t>();
      std::int64_t done = 0;
      for (std::int64_t begin = 0; begin < num_bytes; begin += piece) {
        const std::int64_t end = std::min(begin + piece, num_bytes);
        const std::int64_t first = bytes.num_before(begin);
        const std::int64_t last = bytes.num_before(end);
        RC_ASSERT(first == done);
        done = last;
        int num_runs = 0;
        bytes.for_each_run(first, last, [&](auto from, auto to, auto count) {
          RC_ASSERT(begin <= to && to + count <= end);
          std::memcpy(
              &found[static_cast<std::size_t>(to)],
              data + from,
              static_cast<std::size_t>(count));
          ++num_runs;
        });
        RC_ASSERT((num_runs <= 1) == bytes.is_run(first, last));
      }
      RC_ASSERT(done == bytes.count());
    }
    RC_ASSERT(
        num_bytes == 0 ||
        std::memcmp(found.data(), tensor.const_data_ptr(), found.size()) == 0);
  });
}

}  // namespace box_law_test
}  // namespace accelerate
