# cmake -DOUTPUT=file.cpp -DPAGE=directory -DCHART=file -P EmbedPage.cmake
#   Writes the files of the tool's page as strings in a C++ file. CHART is Chart.js and can
#   be empty.
cmake_minimum_required(VERSION 3.25)
file(READ ${PAGE}/index.html index)
file(READ ${PAGE}/page.css style)
set(script "")
foreach(name text source chart panels main)
  file(READ ${PAGE}/${name}.js part)
  # Each file has its own "use strict" line.
  string(APPEND script "${part}")
endforeach()
set(chart "")
if(CHART)
  file(READ ${CHART} chart)
endif()
# No text may end its string literal or its element of the page early.
foreach(name index style script chart)
  if("${${name}}" MATCHES "\\)accelerate\"" OR (NOT name STREQUAL "index" AND "${${name}}" MATCHES "</(script|style)"))
    message(FATAL_ERROR "the page's ${name} cannot be embedded")
  endif()
endforeach()
file(WRITE ${OUTPUT}.new "#include \"cli/watch/web/page.h\"

namespace accelerate::cli::page_files {
const std::string_view kIndex = R\"accelerate(${index})accelerate\";
const std::string_view kStyle = R\"accelerate(${style})accelerate\";
const std::string_view kScript = R\"accelerate(${script})accelerate\";
const std::string_view kChart = R\"accelerate(${chart})accelerate\";
}  // namespace accelerate::cli::page_files
")
file(RENAME ${OUTPUT}.new ${OUTPUT})
