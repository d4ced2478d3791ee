# A room is a directory of sources. Fresh builds spend most of their time parsing
# headers, so the files of a directory are compiled together: `optim` one by one
# takes 88 CPU seconds, together 22.
option(ACCELERATE_UNITY_BUILD "Compile the files of a directory together" ON)

# accelerate_room(TARGET DIRECTORY [SPLIT n] [EXCEPT file...])
#   Adds every .cpp below DIRECTORY to TARGET, but not those named, one group per
#   directory, or n groups where a directory would take one processor much longer than
#   the others.
function(accelerate_room target directory)
  cmake_parse_arguments(arg "" "SPLIT" "EXCEPT" ${ARGN})
  set(split 1)
  if(arg_SPLIT)
    set(split ${arg_SPLIT})
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${directory}/*.cpp)
  list(TRANSFORM arg_EXCEPT PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  list(REMOVE_ITEM sources ${arg_EXCEPT})
  target_sources(${target} PRIVATE ${sources})
  set(index 0)
  foreach(source IN LISTS sources)
    file(RELATIVE_PATH path ${CMAKE_CURRENT_SOURCE_DIR} ${source})
    get_filename_component(group ${path} DIRECTORY)
    string(REPLACE "/" "_" group ${group})
    math(EXPR part "${index} % ${split}")
    math(EXPR index "${index} + 1")
    set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${group}_${part})
  endforeach()
endfunction()

# accelerate_unity(TARGET): compile the target's groups together.
function(accelerate_unity target)
  if(ACCELERATE_UNITY_BUILD)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      # False alarms of g++ 12 about std::string (its bugs 105329 and 105651), more often the more is inlined.
      # What its flow analysis only suspects is shown, and stops nothing.
      target_compile_options(${target} PRIVATE -Wno-error=maybe-uninitialized -Wno-error=free-nonheap-object -Wno-error=dangling-pointer)
      target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-restrict -Wno-stringop-overread -Wno-stringop-overflow)
    endif()
  endif()
endfunction()
