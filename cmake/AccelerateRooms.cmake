# Clean builds spend most of their time on headers: with LibTorch's, even precompiled, an empty file takes 6 CPU seconds,
# because g++ instantiates the templates that inline functions of these headers use once more for each file. So files are
# compiled together, whole directories at a time. Larger groups take longer to build again after a change to one file:
# work on a room with a smaller ACCELERATE_UNITY_BYTES.
option(ACCELERATE_UNITY_BUILD "Compile the files of a directory together" ON)
set(ACCELERATE_UNITY_BYTES 250000 CACHE STRING "Maximum bytes of source that are compiled together")
mark_as_advanced(ACCELERATE_UNITY_BYTES)

# accelerate_rooms(TARGET DIRECTORY... [EXCEPT file...])
#   Adds every .cpp below the directories to TARGET, except the named files. Names in
#   anonymous namespaces are unique among the directories of one target.
function(accelerate_rooms target)
  cmake_parse_arguments(arg "" "" "EXCEPT" ${ARGN})
  list(TRANSFORM arg_EXCEPT PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  set(group 0)
  set(group_bytes 0)
  foreach(room IN LISTS arg_UNPARSED_ARGUMENTS)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${room}/*.cpp)
    list(REMOVE_ITEM sources ${arg_EXCEPT})
    target_sources(${target} PRIVATE ${sources})
    set(directories ${sources})
    list(TRANSFORM directories REPLACE "/[^/]*$" "")
    list(REMOVE_DUPLICATES directories)
    foreach(directory IN LISTS directories)
      set(files ${sources})
      list(FILTER files INCLUDE REGEX "^${directory}/[^/]*$")
      set(directory_bytes 0)
      foreach(file IN LISTS files)
        file(SIZE ${file} bytes)
        math(EXPR directory_bytes "${directory_bytes} + ${bytes}")
      endforeach()
      math(EXPR together "${group_bytes} + ${directory_bytes}")
      if(group_bytes GREATER 0 AND together GREATER ACCELERATE_UNITY_BYTES)
        math(EXPR group "${group} + 1")
        set(together ${directory_bytes})
      endif()
      set(group_bytes ${together})
      set_source_files_properties(${files} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${target}_${group})
    endforeach()
  endforeach()
endfunction()

# accelerate_unity(TARGET): compiles the files of each of the target's groups together.
function(accelerate_unity target)
  if(ACCELERATE_UNITY_BUILD)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      # g++ 12 has false positives about std::string (its bugs 105329 and 105651), more of them with more inlining.
      # Warnings that come from flow analysis are shown, but are not errors.
      target_compile_options(${target} PRIVATE -Wno-error=maybe-uninitialized -Wno-error=free-nonheap-object -Wno-error=dangling-pointer)
      target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-restrict -Wno-stringop-overread -Wno-stringop-overflow)
    endif()
  endif()
endfunction()

# accelerate_library_headers(TARGET): lets a program of ours use the library's precompiled
# headers, for which it must be compiled as the library is.
function(accelerate_library_headers target)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIC)
  target_compile_definitions(${target} PRIVATE $<TARGET_PROPERTY:accelerate_objects,COMPILE_DEFINITIONS>)
  target_precompile_headers(${target} REUSE_FROM accelerate_objects)
endfunction()
