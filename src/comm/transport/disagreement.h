#pragma once

#include <string>
#include <string_view>

namespace accelerate::detail {

/// A rank's name, and its call.
struct RankCall {
  std::string rank;
  std::string call;
};

/// Returns the message of a transport that compares calls, for two that differ.
/// Autograd loses the exception's type, so the text identifies it: see
/// is_disagreement().
std::string describe_disagreement(const RankCall& own, const RankCall& other);

/// Whether a failure's text is or contains one from describe_disagreement().
bool is_disagreement(std::string_view text);

}  // namespace accelerate::detail
