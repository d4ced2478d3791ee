#pragma once

namespace accelerate::detail::journal_mark {

// The first byte of each item in a payload.
inline constexpr char kName = 'N';
inline constexpr char kScalars = 'S';
inline constexpr char kEvent = 'E';
inline constexpr char kSession = 'B';
inline constexpr char kRewind = 'R';

}  // namespace accelerate::detail::journal_mark
