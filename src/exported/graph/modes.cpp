#include "exported/graph/modes.h"

#include <utility>

namespace accelerate::detail {

namespace {

constexpr std::pair<std::string_view, ModeArguments> kModeArguments[] = {
    {"aten::alpha_dropout", {"train", ""}},
    {"aten::alpha_dropout_", {"train", ""}},
    {"aten::batch_norm", {"training", ""}},
    {"aten::dropout", {"train", ""}},
    {"aten::dropout_", {"train", ""}},
    {"aten::feature_alpha_dropout", {"train", ""}},
    {"aten::feature_alpha_dropout_", {"train", ""}},
    {"aten::feature_dropout", {"train", ""}},
    {"aten::feature_dropout_", {"train", ""}},
    {"aten::gru", {"train", ""}},
    {"aten::lstm", {"train", ""}},
    {"aten::native_dropout", {"train", ""}},
    {"aten::rnn_relu", {"train", ""}},
    {"aten::rnn_tanh", {"train", ""}},
    {"aten::rrelu", {"training", ""}},
    {"aten::rrelu_", {"training", ""}},
    {"aten::scaled_dot_product_attention", {"", "dropout_p"}},
};

}  // namespace

ModeArguments mode_arguments(std::string_view name) {
  for (const auto& [op, arguments] : kModeArguments) {
    if (op == name) return arguments;
  }
  return {};
}

}  // namespace accelerate::detail
