// Rows whose lines in tests/audit/settings are wrong, for the test of
// tools/check_audit.py.
// clang-format off
constexpr std::array<OptionSpec, 6> kPlantedRows{{
    {"acts_and_is_tested", "", "--first", "A", text, "", "", acts, "Training",
     "an option that acts; unused elsewhere"},
    {"acts_and_is_listed_as_reported", "", "--b", "B", text, "", "", acts, "Training",
     "an option"},
    {"launches_and_is_listed_as_reported", "", "--c", "C", choice, "unused", "unused|carried", launches, "Training",
     "an option"},
    {"carried_and_listed_as_tested", "", "--d", "D", text, "", "", carried, "Training",
     "an option"},
    {"python_only_and_refused", "", "--e", "E", text, "", "", python_only, "Training",
     "an option"},
    {"without_use", "", "--f", "F", text, "", "", "Training",
     "an option that acts"},
}};
