// The norm of split and replicated gradients equals the norm of the full ones.
#include "laws/check.h"

#include <array>
#include <cmath>
#include <memory>

#include <accelerate/accelerate.h>

#include "params/gradient_norm.h"
#include "support/rank_pool.h"

namespace accelerate {
namespace norm_law_test {

using testing::expect_law;
using testing::RankPool;

struct MeshRank {
  World world;
  Mesh mesh;
};

double norm_by_hand(const std::vector<at::Tensor>& gradients, double p) {
  double sum = 0;
  for (const at::Tensor& gradient : gradients) {
    const at::Tensor values = gradient.to(at::kDouble).abs();
    if (values.numel() == 0) continue;
    if (std::isinf(p)) {
      sum = std::max(sum, values.max().item<double>());
    } else {
      sum += values.pow(p).sum().item<double>();
    }
  }
  return std::isinf(p) ? sum : std::pow(sum, 1 / p);
}

TEST(NormLaw, IsThatOfTheFullGradients) {
  // Replicate, shard, tensor.
  constexpr std::array<std::array<int, 3>, 5> kLayouts{
      {{1, 1, 1}, {2, 1, 1}, {1, 3, 1}, {2, 2, 1}, {1, 2, 2}}};
  std::vector<std::unique_ptr<RankPool<MeshRank>>> pools;
  for (const auto& [replicate, shard, tensor] : kLayouts) {
    const std::array<int, kNumAxes> degrees{1, replicate, shard, 1, 1, tensor};
    pools.push_back(std::make_unique<RankPool<MeshRank>>(
        replicate * shard * tensor, [degrees](const WorldOptions& options) {
          World world(options);
          Mesh mesh(world, degrees);
          // Makes all groups first, because later only some ranks use each
          // group.
          return MeshRank{world, mesh};
        }));
  }
  expect_law(2'000, [&] {
    const auto layout = *rc::gen::inRange<std::size_t>(0, kLayouts.size());
    const double p = *rc::gen::element(1.0, 2.0, 0.5, 3.0, 7.0, INFINITY);
    const auto seed = *rc::gen::arbitrary<std::uint64_t>();
    struct Row {
      std::int64_t rows, columns;
      bool over_shard, over_tensor, has_gradient;
      at::ScalarType dtype;
    };
    const auto rows =
        *rc::gen::container<std::vector<std::tuple<int, int, bool, bool, int>>>(
            rc::gen::tuple(
                rc::gen::inRange(0, 7),
                rc::gen::inRange(1, 5),
                rc::gen::arbitrary<bool>(),
                rc::gen::arbitrary<bool>(),
                rc::gen::inRange(0, 4)));
    const at::Generator generator = at::detail::createCPUGenerator(seed);
    std::vector<at::Tensor> full;
    for (const auto& [height, width, over_shard, over_tensor, dtype] : rows) {
      constexpr at::ScalarType kDtypes[] = {
          at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};
      full.push_back(at::randn({height, width}, generator).to(kDtypes[dtype]));
    }
    const double expected = norm_by_hand(full, p);
    std::vector<double> found(8, -1);
    pools[layout]->run([&](MeshRank& rank) {
      std::vector<detail::Parameter> parameters;
      for (std::size_t i = 0; i < full.size(); ++i) {
        const auto [height, width, over_shard, over_tensor, dtype] = rows[i];
        at::Tensor box = full[i];
        detail::Parameter row;
        for (const auto& [axis, is_split] :
             {std::pair{Axis::shard, over_shard},
              std::pair{Axis::tensor, over_tensor}}) {
          if (!is_split) continue;
          // Shards can be uneven or empty.
          box = box.tensor_split(rank.mesh.degree(
              axis))[static_cast<std::size_t>(rank.mesh.coordinate(axis))];
          row.layout.split_axes.push_back(axis);
        }
        row.local = at::zeros_like(box).requires_grad_();
        row.local.mutable_grad() = box;
        parameters.push_back(std::move(row));
      }
      std::vector<detail::PlacedParameter> placed;
      for (const auto& row : parameters) placed.push_back({&row, &rank.mesh});
      found[static_cast<std::size_t>(rank.world.rank())] =
          detail::gradient_norm(placed, p).item<double>();
    });
    // Powers of small numbers lose digits in single precision.
    const double tolerance = 1e-4 * std::max(1.0, expected);
    const auto& degrees = kLayouts[layout];
    for (int rank = 0; rank < degrees[0] * degrees[1] * degrees[2]; ++rank) {
      RC_ASSERT(found[static_cast<std::size_t>(rank)] == found[0]);
    }
    RC_ASSERT(std::abs(found[0] - expected) <= tolerance);
  });
}

}  // namespace norm_law_test
}  // namespace accelerate
