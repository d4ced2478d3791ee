#pragma once

/// Marks what the shared library shows; everything else stays hidden.
#define ACCELERATE_API __attribute__((visibility("default")))
