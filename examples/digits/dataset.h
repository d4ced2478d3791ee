#pragma once

#include <string>

#include <ATen/core/Tensor.h>

/// Handwritten digits: images [N, 1, 8, 8] float in 0..1, labels [N] int64.
struct Digits {
  at::Tensor images;
  at::Tensor labels;
};

struct DigitsSplit {
  Digits train;
  Digits test;
};

/// Reads the compressed CSV file; every fifth digit is for testing. Throws
/// std::runtime_error naming the file and the malformed line.
DigitsSplit read_digits(const std::string& path);
