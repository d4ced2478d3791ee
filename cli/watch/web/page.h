#pragma once

#include <string>
#include <string_view>

namespace accelerate::cli {

/// Files of the page, built into the tool (cli/watch/page).
namespace page_files {
extern const std::string_view kIndex;
extern const std::string_view kStyle;
/// All scripts of the page.
extern const std::string_view kScript;
/// Chart.js; empty if it was not there when the tool was built.
extern const std::string_view kChart;
}  // namespace page_files

/// The page as one document that loads nothing. `data`: JSON that its script
/// begins with, {"token": ...} for a page that asks the server, else all of it.
std::string make_page(std::string_view data);

}  // namespace accelerate::cli
