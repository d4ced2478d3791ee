#pragma once

#include <string>
#include <string_view>

namespace accelerate::detail {

/// A rank's name, and what it called.
struct RankCall {
  std::string rank;
  std::string call;
};

/// What a transport that compares calls says of two that differ. Inside autograd
/// an exception has no type, so the text has to tell: see is_disagreement().
std::string describe_disagreement(const RankCall& own, const RankCall& other);

/// Whether a failure's text is one that describe_disagreement() made, or
/// contains it.
bool is_disagreement(std::string_view text);

}  // namespace accelerate::detail
