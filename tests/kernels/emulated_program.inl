// One program's kernels, chosen by its macros, in the namespace
// that includes this.
#include "kernels/cuda/prelude.cu"

#include "kernels/cuda/float8_formats.cu"

#include "kernels/cuda/add_norm.cu"
#include "kernels/cuda/bias_activation.cu"
#include "kernels/cuda/cross_entropy.cu"
#include "kernels/cuda/float8_amax.cu"
#include "kernels/cuda/float8_blocks.cu"
#include "kernels/cuda/float8_rows.cu"
#include "kernels/cuda/float8_tile.cu"
#include "kernels/cuda/rotary.cu"

inline void add_to(
    KernelTable& table,
    const std::string& value,
    const std::string& cast,
    const std::string& activation,
    const std::string& norm) {
  table[value + " amax"] = emulated(&amax);
  table[value + " amax_of_columns"] = emulated(&amax_of_columns);
  table[value + " rotary"] = emulated(&rotary);
  table[activation + " bias_activation"] = emulated(&bias_activation);
  table[norm + " add_norm_forward"] = emulated(&add_norm_forward);
  table[norm + " add_norm_backward"] = emulated(&add_norm_backward);
  table[value + " cross_entropy_forward"] = emulated(&cross_entropy_forward);
  table[value + " cross_entropy_backward"] = emulated(&cross_entropy_backward);
  table[cast + " cast_tile"] = emulated(&cast_tile);
  table[cast + " cast_rows"] = emulated(&cast_rows);
  table[cast + " cast_blocks_of_rows"] = emulated(&cast_blocks_of_rows);
  table[cast + " cast_blocks_of_columns"] = emulated(&cast_blocks_of_columns);
}
#undef VALUE
#undef FORMAT
#undef ROUNDING
#undef ACTIVATION
#undef CENTERS
