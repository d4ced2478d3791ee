#pragma once

// Two members and an enumerator here have no docstring.
namespace accelerate {

/// Ranks.
struct Group {
  /// The first rank.
  int first = 0;
  int size = 1;
  /// Receives.
  void receive();
  void send(
      int rank);
  int last = 0;  ///< the last rank
};

/// How much is said: `quiet` says nothing.
enum class Kind {
  quiet,
  loud,
};

}  // namespace accelerate
