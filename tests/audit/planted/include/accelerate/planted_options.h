#pragma once

// Fields whose lines in tests/audit/settings are wrong, for the test of
// tools/check_audit.py.
struct PlantedOptions {
  int named = 0;
  int unnamed = 0;
  int missing = 0;
  int shown = 0;
  int mentioned_in_a_comment = 0;
  int explained = 0;
};

struct PlantedWithoutEnding {
  int field = 0;
};

struct PlantedResult {
  int found = 0;
};

namespace detail {
struct PlantedDetail {
  int hidden = 0;
};
}  // namespace detail
