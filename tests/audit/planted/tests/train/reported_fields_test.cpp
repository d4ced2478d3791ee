TEST(Planted, NamesAKeyByItsFlag) { run({"--first"}); }

TEST(Planted, IsReported) {
  expect_reported("planted.named");
}

TEST(Planted, SetsAField) {
  PlantedOptions options;
  options.shown = 1;  // not options.mentioned_in_a_comment
}
