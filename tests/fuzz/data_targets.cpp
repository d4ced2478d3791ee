#include <span>
#include <string>
#include <string_view>

#include "data/datasets/csv_numbers.h"
#include "data/datasets/csv_table.h"
#include "data/datasets/idx_header.h"
#include "data/images/decoded_image.h"
#include "fuzz/guarded.h"
#include "fuzz/targets.h"

namespace accelerate::fuzz {

void csv(Input input) {
  const std::filesystem::path path = scratch() / "x.csv";
  put(path, text_of(input));
  guarded([&] {
    const detail::CsvTable table(path.string(), {});
    static_cast<void>(table.places_of(table.columns()));
    const std::string_view text = table.text();
    for (std::int64_t i = 0; i < table.num_rows(); ++i) {
      for (const std::string& field : table.fields_of(text, i)) {
        static_cast<void>(detail::is_missing(field));
        static_cast<void>(detail::decimal_of(field));
        static_cast<void>(detail::integer_of(field));
      }
    }
  });
}

void idx(Input input) {
  guarded([&] {
    static_cast<void>(detail::parse_idx_header(
        input.first(std::min(input.size(), detail::kMostIdxHeaderBytes)),
        input.size(),
        "x.idx"));
  });
}

void image(Input input) {
  constexpr std::string_view kTga = "TGA";
  const bool is_tga = text_of(input).starts_with(kTga);
  if (is_tga) input = input.subspan(kTga.size());
  try {
    const detail::DecodedImage pixels = detail::decode_image(
        {reinterpret_cast<const std::uint8_t*>(input.data()), input.size()},
        is_tga);
    static_cast<void>(detail::with_channels(pixels, 1));
  } catch (const detail::ImageFault&) {
    // Refused, as expected.
  }
}

}  // namespace accelerate::fuzz
