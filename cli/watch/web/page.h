#pragma once

#include <string>
#include <string_view>

namespace accelerate::cli {

/// Files of the page (cli/watch/page), embedded in the tool.
namespace page_files {
extern const std::string_view kIndex;
extern const std::string_view kStyle;
/// All scripts of the page.
extern const std::string_view kScript;
/// Chart.js; empty if it was unavailable when the tool was built.
extern const std::string_view kChart;
}  // namespace page_files

/// The page as one document that loads nothing else. `data`: the JSON with
/// which its script starts, {"token": ...} for a page that queries the server,
/// otherwise everything.
std::string make_page(std::string_view data);

}  // namespace accelerate::cli
