#pragma once

/// Marks the symbols that the shared library exports; all others are hidden.
#define ACCELERATE_API __attribute__((visibility("default")))
