#pragma once

// Fields whose lines in tests/audit/settings are wrong, for the test of
// tools/check_audit.py.
struct PlantedOptions {
  int named = 0;
  int unnamed = 0;
  int missing = 0;
};
