#pragma once

/// The datasets that come with the library.
#include <accelerate/csv_dataset.h>
#include <accelerate/idx.h>
#include <accelerate/image_folder.h>
#include <accelerate/json_lines.h>
#include <accelerate/tensor_dataset.h>
#include <accelerate/token_dataset.h>
