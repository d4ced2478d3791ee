TEST(Planted, Acts) { expect_reported("planted.named"); }
