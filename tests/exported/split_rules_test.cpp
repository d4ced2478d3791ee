// Operators on slices of their tensors: either a rule refuses them, or they compute slices of the result.
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <accelerate/error.h>

#include "exported/divide/divided_call.h"
#include "exported/divide/value_split.h"
#include "exported/graph/interpreter.h"
#include "support/expect_error.h"

namespace accelerate::testing::split_rules_test {

using c10::IValue;
using detail::DividedValue;
using detail::ValueSplit;
using torch::Tensor;

constexpr int kRanks = 2;

// A tensor of these sizes, without equal values.
Tensor of(std::vector<std::int64_t> sizes) {
  const std::int64_t count = c10::multiply_integers(sizes);
  return torch::sin(torch::arange(count, torch::kDouble) * 0.7 + 0.1)
      .view(sizes);
}

struct Case {
  const char* op;
  const char* overload;
  std::vector<IValue> arguments;
  /// How many ways to divide its tensors the rule accepts.
  int num_accepted;
};

void PrintTo(const Case& each, std::ostream* out) {
  *out << each.op << "." << each.overload;
}

// A graph that calls one operator, whose tensors are the graph's inputs.
class OneCall {
 public:
  explicit OneCall(const Case& each) {
    const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow(each.op, each.overload);
    detail::Instruction& instruction = code_.instructions.emplace_back();
    instruction.op = op;
    instruction.place = each.op;
    const auto& schema = op.schema().arguments();
    for (std::size_t i = 0; i < schema.size(); ++i) {
      const bool is_given = i < each.arguments.size();
      instruction.arguments.push_back(operand(
          is_given ? each.arguments[i] : *schema[i].default_value(),
          schema[i].type()));
    }
    results_ = run(code_, inputs_);
    for (const Tensor& result : results_) {
      instruction.results.push_back(add_slot(result));
      detail::Operand output;
      output.slot = instruction.results.back();
      code_.outputs.push_back(output);
    }
    instruction.unpacks =
        op.schema().returns()[0].type()->kind() == c10::TypeKind::ListType;
  }

  [[nodiscard]] const std::vector<Tensor>& inputs() const { return inputs_; }

  // Expects slices of the results, for inputs that are divided so.
  void expect_slices(std::vector<std::optional<ValueSplit>> splits) const {
    for (int rank = 0; rank < kRanks; ++rank) {
      detail::Code code = code_;
      std::vector<DividedValue> values(code.num_slots);
      std::vector<Tensor> own = inputs_;
      for (std::size_t i = 0; i < own.size(); ++i) {
        values[i].split = splits[i];
        if (splits[i]) own[i] = slice_of(own[i], *splits[i], rank);
      }
      detail::DividedCall call(code.instructions[0], code, values, rank);
      detail::divide_results(call);
      const std::vector<Tensor> found = run(code, own);
      ASSERT_EQ(found.size(), results_.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        const auto& split = values[inputs_.size() + i].split;
        ASSERT_TRUE(split.has_value());
        const Tensor expected = slice_of(results_[i], *split, rank);
        ASSERT_EQ(found[i].sizes(), expected.sizes());
        EXPECT_TRUE(torch::allclose(found[i], expected, 1e-12, 1e-12))
            << "rank " << rank << ", result " << i;
      }
    }
  }

 private:
  static Tensor
  slice_of(const Tensor& tensor, const ValueSplit& split, int rank) {
    return tensor
        .narrow(
            split.dim,
            split.begins[rank],
            split.begins[rank + 1] - split.begins[rank])
        .clone();
  }

  int add_slot(const Tensor& tensor) {
    code_.tensors.push_back(
        {true, tensor.is_floating_point(), tensor.sizes().vec()});
    return code_.num_slots++;
  }

  detail::Operand operand(const IValue& value, const c10::TypePtr& type) {
    detail::Operand operand;
    if (value.isTensor() && value.toTensor().defined()) {
      inputs_.push_back(value.toTensor());
      operand.slot = add_slot(value.toTensor());
      code_.inputs.push_back(operand.slot);
    } else if (value.isTensorList()) {
      operand.list = std::make_shared<detail::Operand::List>();
      operand.list->element = c10::TensorType::get();
      for (const Tensor& item : value.toTensorVector())
        operand.list->items.push_back(this->operand(item, nullptr));
    } else {
      operand.constant = value;
    }
    static_cast<void>(type);
    return operand;
  }

  static std::vector<Tensor> run(
      const detail::Code& code,
      const std::vector<Tensor>& inputs) {
    const detail::Instruction& instruction = code.instructions[0];
    std::vector<IValue> stack;
    const auto value_of = [&](const detail::Operand& operand) -> IValue {
      if (operand.slot >= 0) return inputs[operand.slot].clone();
      if (!operand.list) return operand.constant;
      c10::List<Tensor> list;
      for (const auto& item : operand.list->items)
        list.push_back(inputs[item.slot].clone());
      return list;
    };
    for (const auto& operand : instruction.arguments)
      stack.push_back(value_of(operand));
    instruction.op->callBoxed(&stack);
    std::vector<Tensor> results;
    for (const IValue& value : stack) {
      if (value.isTensorList()) {
        for (const Tensor& item : value.toTensorVector())
          results.push_back(item);
      } else {
        results.push_back(value.toTensor());
      }
    }
    return results;
  }

  detail::Code code_;
  std::vector<Tensor> inputs_;
  std::vector<Tensor> results_;
};

IValue ints(std::vector<std::int64_t> list) {
  return c10::List<std::int64_t>(list);
}
IValue none() { return {}; }
IValue list_of(std::vector<Tensor> tensors) {
  return c10::List<Tensor>(std::move(tensors));
}

std::vector<Case> cases() {
  const Tensor x = of({2, 4, 6, 4});
  const Tensor head = of({2, 4, 6, 4}) * 2;
  return {
      {"aten::mul", "Tensor", {x, 2.0 * of({4})}, 14},
      {"aten::add", "Tensor", {x, head}, 8},
      {"aten::add", "Tensor", {x, of({6, 1})}, 14},
      {"aten::silu", "", {x}, 8},
      {"aten::mul_", "Tensor", {x, of({2, 4, 1, 4})}, 10},
      {"aten::where", "self", {x > 0, x, head}, 8},
      {"aten::masked_fill", "Scalar", {x, x > 0, 3.0}, 8},
      {"aten::to", "dtype", {x, at::kDouble}, 8},
      {"aten::type_as", "", {x, of({1})}, 16},
      {"aten::contiguous", "", {x}, 8},
      {"aten::dropout", "", {x, 0.0, true}, 8},
      {"aten::zeros_like", "", {x}, 8},
      {"aten::mean", "dim", {x, ints({-1}), true}, 6},
      {"aten::mean", "dim", {x, ints({1, -1}), false}, 4},
      {"aten::sum", "dim_IntList", {x, ints({0}), false}, 6},
      {"aten::sum", "", {x}, 0},
      {"aten::amax", "", {x, ints({2}), true}, 6},
      {"aten::softmax", "int", {x, -1}, 6},
      {"aten::log_softmax", "int", {x, 1}, 6},
      {"aten::cumsum", "", {x, 2}, 6},
      {"aten::layer_norm", "", {x, ints({4}), of({4}), of({4})}, 12},
      {"aten::rms_norm", "", {x, ints({6, 4})}, 4},
      {"aten::transpose", "int", {x, 1, -1}, 8},
      {"aten::t", "", {of({4, 6})}, 4},
      {"aten::permute", "", {x, ints({0, 2, 3, 1})}, 8},
      {"aten::unsqueeze", "", {x, 2}, 8},
      {"aten::unsqueeze", "", {x, -1}, 8},
      {"aten::squeeze", "dim", {of({4, 1, 6}), 1}, 4},
      {"aten::squeeze", "dim", {of({4, 2, 6}), 1}, 4},
      {"aten::squeeze", "", {of({4, 1, 6})}, 0},
      // Heads of four: slices may begin at whole heads alone.
      {"aten::view", "", {of({3, 8, 16}), ints({3, 8, 4, 4})}, 5},
      {"aten::view", "", {of({3, 8, 16}), ints({3, 8, -1, 4})}, 5},
      {"aten::view", "", {of({3, 8, 16}), ints({24, 16})}, 4},
      {"aten::reshape", "", {of({3, 4, 2, 5, 4}), ints({3, 8, 5, 4})}, 8},
      {"aten::reshape", "", {of({3, 5, 4, 4}), ints({3, 5, 16})}, 6},
      {"aten::flatten", "using_ints", {x, 1, 2}, 6},
      {"aten::expand", "", {of({2, 4, 1, 6}), ints({2, 4, 3, 6})}, 6},
      {"aten::expand", "", {of({4, 1, 6}), ints({2, -1, 3, -1})}, 4},
      {"aten::slice", "Tensor", {x, 3, 0, 2}, 6},
      {"aten::slice", "Tensor", {x, 3, 0, INT64_MAX}, 8},
      {"aten::slice", "Tensor", {x, 3, -2, INT64_MAX}, 6},
      {"aten::select", "int", {x, 1, 0}, 6},
      {"aten::narrow", "", {x, 1, 1, 2}, 6},
      {"aten::cat", "", {list_of({x, head}), -1}, 6},
      {"aten::stack", "", {list_of({x, head}), 1}, 8},
      {"aten::split", "Tensor", {x, 2, 3}, 6},
      {"aten::split_with_sizes", "", {x, ints({1, 3}), 1}, 6},
      {"aten::chunk", "", {x, 2, -1}, 6},
      {"aten::unbind", "int", {x, 0}, 6},
      {"aten::repeat_interleave", "self_int", {x, 3, 1}, 8},
      {"aten::repeat_interleave", "self_int", {x, 3}, 0},
      {"aten::matmul", "", {x, of({2, 4, 4, 6})}, 8},
      {"aten::matmul", "", {x, of({4, 6})}, 12},
      {"aten::bmm", "", {of({4, 2, 6}), of({4, 6, 2})}, 6},
      {"aten::linear", "", {x, of({5, 4}), of({5})}, 10},
      {"aten::scaled_dot_product_attention", "", {x, head, x, none()}, 4},
      {"aten::scaled_dot_product_attention",
       "",
       {x, head, x, of({2, 1, 6, 6})},
       4},
      {"aten::scaled_dot_product_attention",
       "",
       {of({2, 8, 6, 4}), x, head, none(), 0.0, false, none(), true},
       3},
      {"aten::sort", "", {x, 1, false}, 0},
      {"aten::conv1d", "", {of({2, 4, 6}), of({4, 4, 1})}, 0},
  };
}

class SplitRules : public ::testing::TestWithParam<Case> {};

// All ways to divide one dimension of the first tensor, of the second, or of
// all that have it, counted from the last.
TEST_P(SplitRules, ComputeSlicesOrRefuse) {
  const OneCall call(GetParam());
  const auto& inputs = call.inputs();
  int num_accepted = 0;
  const auto attempt =
      [&](const std::vector<std::optional<ValueSplit>>& splits) {
        try {
          call.expect_slices(splits);
          ++num_accepted;
        } catch (const ConfigError& error) {
          EXPECT_NE(
              std::string(error.what()).find("must get its inputs"),
              std::string::npos);
        }
      };
  for (std::int64_t dim = 1; dim <= inputs[0].dim(); ++dim) {
    for (const bool is_even : {true, false}) {
      std::vector<std::optional<ValueSplit>> splits(inputs.size());
      std::vector<std::vector<std::optional<ValueSplit>>> tried;
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        const std::int64_t own = inputs[i].dim() - dim;
        if (own < 0 || inputs[i].size(own) < 2) continue;
        const std::int64_t size = inputs[i].size(own);
        const ValueSplit split{own, {0, is_even ? size / 2 : 1, size}, "layer"};
        splits[i] = split;
        std::vector<std::optional<ValueSplit>> alone(inputs.size());
        alone[i] = split;
        if (inputs.size() > 1) tried.push_back(alone);
      }
      tried.push_back(splits);
      for (const auto& each : tried) {
        const bool has_split =
            std::any_of(each.begin(), each.end(), [](const auto& split) {
              return split.has_value();
            });
        if (has_split) attempt(each);
      }
    }
  }
  EXPECT_EQ(num_accepted, GetParam().num_accepted);
}

INSTANTIATE_TEST_SUITE_P(Exported, SplitRules, ::testing::ValuesIn(cases()));

TEST(SplitRules, FollowADimensionThroughViews) {
  using detail::viewed_dim;
  const auto found = viewed_dim(2, {3, 8, 16}, {3, 8, 4, 4});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->dim, 2);
  EXPECT_EQ(found->from_stride, 1);
  EXPECT_EQ(found->to_stride, 4);
  // Sizes that agree by chance, and sizes of one.
  EXPECT_EQ(viewed_dim(1, {4, 4, 4}, {4, 1, 4, 4})->dim, 2);
  EXPECT_EQ(viewed_dim(2, {1, 1, 6}, {6, 1})->dim, 0);
  // (batch, heads) becomes one dimension.
  EXPECT_FALSE(viewed_dim(1, {3, 4, 5}, {12, 5}));
  EXPECT_FALSE(viewed_dim(1, {3, 4}, {2, 5}));
  EXPECT_FALSE(viewed_dim(1, {-1, 4}, {-1, 2, 2}));
  EXPECT_FALSE(viewed_dim(0, {INT64_MAX, 4}, {4, INT64_MAX}));
  EXPECT_EQ(
      detail::rescaled({0, 2, 4}, 4, 8), (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_FALSE(detail::rescaled({0, 1, 4}, 4, 8));
}

}  // namespace accelerate::testing::split_rules_test
