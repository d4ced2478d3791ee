#pragma once

/// Of a stream.
struct Fragments {
  // Who asks.
  int asked = 0;
  /// Number of units gathered ahead, which is at most the number
  /// Of those that there are: this line continues a sentence.
  /// So many units.
  int ahead = 0;
  /// In place.
  int reduced = 0;
  /// The same, but later.
  int later = 0;
};
