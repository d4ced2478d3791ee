// Every axis on 2, 3 and 4 ranks, every pair on 4, three on 8 and all four on
// 16, in fp32 and bf16, with and without accumulation and recomputation:
// losses, norms and weights after 20 steps equal those of one process. By
// default only grids of at most 4 ranks run, each in one of the eight ways and
// with one or two models; ACCELERATE_TEST_AXES=all runs all.
#include <cstdlib>
#include <map>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "axes_problem.h"

namespace accelerate {
namespace axes_parity_test {

using namespace axes_problem;

struct Case {
  std::string net;
  Axes axes;
  Precision precision = Precision::no;
  int window = 1;
  bool recomputes = false;

  [[nodiscard]] std::string way() const {
    return std::string(name_of(precision)) + "_window" +
        std::to_string(window) + (recomputes ? "_recomputed" : "_plain");
  }
};

void PrintTo(const Case& each, std::ostream* out) {
  *out << each.net << " on " << each.axes.name() << ' ' << each.way();
}

std::vector<Axes> grids() {
  std::vector<Axes> grids;
  for (const int ranks : {2, 3, 4}) {
    grids.push_back({.replicate = ranks});
    grids.push_back({.shard = ranks});
    grids.push_back({.context = ranks});
    grids.push_back({.tensor = ranks});
  }
  // The 11 grids in which at least two axes have two ranks.
  for (int axes = 0; axes < 16; ++axes) {
    const auto degree = [&](int axis) { return 1 + (axes >> axis & 1); };
    const Axes grid{degree(0), degree(1), degree(2), degree(3)};
    if (grid.num_ranks() >= 4) grids.push_back(grid);
  }
  return grids;
}

std::vector<Case> cases() {
  const char* const wanted = std::getenv("ACCELERATE_TEST_AXES");
  const bool all = wanted != nullptr && std::string_view(wanted) == "all";
  std::vector<Case> cases;
  std::size_t number = 0;
  for (const char* const net : {"Mlp", "Encoder", "Gpt"}) {
    for (const Axes& axes : grids()) {
      ++number;
      const bool is_left_out = axes.num_ranks() > 4 ||
          (std::string_view(net) != "Gpt" && number % 3 != 0);
      for (std::size_t way = 0; way < 8; ++way) {
        if (!all && (way != number % 8 || is_left_out)) continue;
        cases.push_back(
            {net,
             axes,
             (way & 1) != 0 ? Precision::bf16 : Precision::no,
             (way & 2) != 0 ? 3 : 1,
             (way & 4) != 0});
      }
    }
  }
  return cases;
}

class AxesParity : public ::testing::TestWithParam<Case> {};

template <class Module>
void expect_like_one_process(const Case& each) {
  // In 16 bits, sums over slices round differently.
  const Numbers numbers{
      .steps = 20,
      .window = each.window,
      .recomputes = each.recomputes,
      .precision = each.precision,
      .tolerance = each.precision == Precision::no ? 2e-5 : 3e-2,
      .samples = 12};
  static std::map<std::string, Outcome> known;
  auto expected = known.find(each.way());
  if (expected == known.end())
    expected = known.emplace(each.way(), outcome_on<Module>({}, numbers)).first;
  expect_like<Module>(expected->second, each.axes, numbers);
}

TEST_P(AxesParity, EndsAsOneProcessDoes) {
  const Case& each = GetParam();
  if (each.net == "Mlp") expect_like_one_process<Mlp>(each);
  if (each.net == "Gpt") expect_like_one_process<Gpt>(each);
  if (each.net == "Encoder") expect_like_one_process<Encoder>(each);
}

std::string case_name(const ::testing::TestParamInfo<Case>& each) {
  const Case& found = each.param;
  return found.net + "_" + found.axes.name() + "_" + found.way();
}

INSTANTIATE_TEST_SUITE_P(
    All,
    AxesParity,
    ::testing::ValuesIn(cases()),
    case_name);

}  // namespace axes_parity_test
}  // namespace accelerate
